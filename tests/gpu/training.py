"""Updates and steps: bfloat16 with LLDS, Δ as the weights say, moments in main memory, waits."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lldscope_trainer.algorithms.update import Updater
from lldscope_trainer.optim.optimizer import TorchOptimizer
from lldscope_trainer.policy.logprobs import action_logps
from lldscope_trainer.policy.model import load_policy
from lldscope_trainer.train import Trainer
from torch.utils._python_dispatch import TorchDispatchMode

from tests.helpers.keeper import Keeper, one_step

from .checks import Figures, Place, check, close, now
from .made import alone, batch, one_turn, policy, settings

SYNCHRONISING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"}
"""Calls for which the processor waits for the device: the size or value of the result is read."""
MOST_WAITS = 12
"""Of them in a micro-batch; each costs a GPU the time of a few kernels."""


@check("ten steps in bfloat16 with LLDS")
def ten_steps(place: Place) -> tuple[str, Figures]:
    keeper = Keeper()
    trainer = one_turn(Trainer(settings(place, "dtype=bfloat16", "steps=10"), keeper))
    before = [p.detach().clone() for p in trainer.policy.model.parameters()]
    for step in range(10):
        trainer.step(step)
    shift = sum(
        int((p != q).sum()) for p, q in zip(trainer.policy.model.parameters(), before, strict=True)
    )
    share = shift / sum(p.numel() for p in before)
    updates = keeper.rows("updates")
    assert len(updates) == 40
    assert not any(row["skipped"] for row in updates), "updates were skipped"
    assert all(math.isfinite(row["grad_norm"]) and row["grad_norm"] > 0 for row in updates)
    losses = [row[name] for row in keeper.rows("steps") for name in ("loss_policy", "loss_llds")]
    assert all(math.isfinite(loss) for loss in losses), "a loss is not finite"
    assert max(row["loss_llds"] for row in keeper.rows("steps")) > 0, "no gate ever opened"
    assert all(torch.isfinite(p).all() for p in trainer.policy.model.parameters())
    assert share > 0.2, f"only {share:.1%} of the weights moved"
    return f"40 updates, all finite; {share:.0%} of the weights moved", {"moved": share}


@check("recorded Δ against weights read back from disk")
def delta(place: Place) -> tuple[str, Figures]:
    keeper = Keeper()
    trainer = one_turn(Trainer(settings(place, "steps=1", "lr=1e-3"), keeper))
    copies: list[Any] = []
    score = trainer._rescore

    def rescore(step: int, sample: Any, *rest: Any) -> None:
        copies.append(sample)
        score(step, sample, *rest)

    trainer._rescore = rescore  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        trainer.policy.save(Path(folder) / "old")
        trainer.step(0)
        trainer.policy.save(Path(folder) / "post")
        product, results = copies[0], {}
        with torch.no_grad():
            for name in ("old", "post"):
                model = load_policy(str(Path(folder) / name), place.device).model
                results[name] = action_logps(model, product.ids, product.mask).double().sum(1).cpu()
    recorded = {"old": [0.0] * len(product.ids), "post": [0.0] * len(product.ids)}
    for row in keeper.rows("actions"):
        for name, sums in recorded.items():
            sums[row["response_id"]] += row[f"logp_{name}_sum"]
    info = torch.tensor(recorded["post"]).double() - torch.tensor(recorded["old"]).double()
    true = results["post"] - results["old"]
    worst = float((info - true).abs().max())
    assert true.abs().max() > 0.01, "the update moved nothing that could be compared"
    assert worst < 1e-2, f"a response's Δ is {worst:.1e} nats off"
    size = float(true.abs().mean())
    return f"mean |Δ| {size:.2f} nats a response, at most {worst:.0e} off", {"error": worst}


@check("moments in main memory change no update")
def offload(place: Place) -> tuple[str, Figures]:
    """Seconds of taking them out and bringing them back, and the bytes that are free meanwhile."""
    weights, figures = {}, {}
    for value in ("false", "true"):
        settings_of_this = settings(place, "updates=2", f"offload_moments={value}")
        model = policy(place)
        optimizer = TorchOptimizer(model, settings_of_this, alone(place))
        updater = Updater(settings_of_this, optimizer, alone(place))
        sample = batch(place, model.model, 8)
        for step in range(3):
            with optimizer.moments_at_hand():
                one_step(updater, sample, step)
        start = now(place)
        before = torch.cuda.memory_allocated() if place.cuda else 0
        with optimizer.moments_at_hand():
            inside = torch.cuda.memory_allocated() if place.cuda else 0
        if value == "true":
            figures = {"s": now(place) - start, "bytes": inside - before}
        weights[value] = torch.cat([p.detach().flatten() for p in model.model.parameters()])
        del model, optimizer, updater
    figures["off"] = close("the weights", weights["true"], weights["false"], 1e-5)
    if place.cuda:
        assert figures["bytes"] >= 8 * len(weights["true"]), f"{figures['bytes']:.2e} bytes freed"
    return f"{figures['bytes'] / 2**30:.1f} GiB free, {figures['s']:.2f} s in and out", figures


class Waits(TorchDispatchMode):
    """Calls for which the processor waits for the device, by where they are; without a GPU those
    that would have to."""

    def __init__(self) -> None:
        super().__init__()
        self.places: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.places[function._schema.name] += function._schema.name in SYNCHRONISING
        return function(*args, **(kwargs or {}))


def waits_of(place: Place, work: Callable[[], object]) -> Counter[str]:
    """The waits, as CUDA itself counts them where there is one."""
    if not place.cuda:
        with Waits() as records:
            work()
        return records.places
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Counter(
        f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)
    )


@check("device synchronisations per micro-batch", rank=1)
def waits(place: Place) -> tuple[str, Figures]:
    model = policy(place)
    sample = batch(place, model.model, 8)
    sample.ref = sample.old.clone()
    counted = {}
    for tokens in (1, 10**6):
        config = settings(place, "updates=1", f"micro_tokens={tokens}", "kl_coefficient=0.01",
                          "entropy_coefficient=0.01")
        updater = Updater(config, TorchOptimizer(model, config, alone(place)), alone(place))
        counted[tokens] = waits_of(place, lambda u=updater: one_step(u, sample))
    # Eight micro-batches against one: what an update costs once drops out.
    each = {name: (n - counted[10**6][name]) / 7 for name, n in counted[1].items()}
    each = {name: n for name, n in each.items() if n}
    total = sum(each.values())
    assert total <= MOST_WAITS, f"{total:g} in each micro-batch, allowed {MOST_WAITS}: {each}"
    return f"{total:g} in each, LLDS, KL and entropy on: {each}", {"each": each}
