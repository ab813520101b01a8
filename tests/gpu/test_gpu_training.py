"""Updates and steps: bfloat16 with LLDS, Δ as the weights say, moments in main memory, waits."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lldscope_trainer.policy.logprobs import action_logps
from lldscope_trainer.policy.model import load_policy
from lldscope_trainer.train import Trainer
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.trl import Listed, OneTurn, draw_questions
from lldscope.losses.llds import GATES
from tests.gpu.made import CUDA, DEVICE, batch, close, now, policy, settings, updater
from tests.helpers.keeper import Keeper, one_step

SYNCHRONISING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"}
"""Calls for which the processor waits for the device: the size or value of the result is read."""
MOST_WAITS = 12
"""Of them in a micro-batch; each costs a GPU the time of a few kernels."""


class Training(Trainer):
    """On a task without a tool, whose reward is now 0, now 1 for every policy."""

    def __init__(self, model: str, *overrides: str) -> None:
        self.keeper = Keeper()
        super().__init__(settings(model, *overrides), self.keeper)
        self._task.questions = Listed(draw_questions(4))
        self._task.environment = OneTurn()


def test_ten_steps_in_bfloat16_with_llds(model, tell):
    trainer = Training(model, "dtype=bfloat16", "steps=10")
    parameters = list(trainer.policy.model.parameters())
    before = [p.detach().clone() for p in parameters]
    for step in range(10):
        trainer.step(step)
    shift = sum(int((p != q).sum()) for p, q in zip(parameters, before, strict=True))
    share = shift / sum(p.numel() for p in before)
    updates, steps = trainer.keeper.rows("updates"), trainer.keeper.rows("steps")
    assert len(updates) == 40
    assert not any(row["skipped"] for row in updates)
    assert all(math.isfinite(row["grad_norm"]) and row["grad_norm"] > 0 for row in updates)
    assert all(math.isfinite(row["loss_policy"] + row["loss_llds"]) for row in steps)
    assert max(row["loss_llds"] for row in steps) > 0, "no gate ever opened"
    assert all(torch.isfinite(p).all() for p in parameters)
    assert share > 0.2
    tell(f"40 updates, all finite; {share:.0%} of the weights moved")


@pytest.mark.parametrize(
    "setting",
    [*(f"llds={gate}" for gate in GATES), "llds_normalizer=all", "objective=gspo",
     "aggregation=sequence-mean", "aggregation=dr-grpo", "dual_clip=3"],
)
def test_every_loss_makes_an_update(model, setting):
    mine, config = policy(model), settings(model, "updates=1", "kl_coefficient=0.01", setting)
    sample = batch(mine.model, 8)
    sample.ref = sample.old.clone()
    (stats,) = one_step(updater(mine, config), sample)
    assert math.isfinite(stats.grad_norm)
    assert stats.grad_norm > 0


def test_recorded_delta_is_that_of_weights_read_back_from_disk(model, tell, tmp_path):
    trainer = Training(model, "steps=1", "lr=1e-3")
    sample, summed = trainer.sample(0), {}
    trainer.policy.save(tmp_path / "old")
    trainer.finish(sample)
    trainer.policy.save(tmp_path / "post")
    recorded = {name: torch.zeros(len(sample.batch.ids)).double() for name in ("old", "post")}
    for name, sums in recorded.items():
        for row in trainer.keeper.rows("actions"):
            sums[row["response_id"]] += row[f"logp_{name}_sum"]
        there = load_policy(str(tmp_path / name), DEVICE).model
        with torch.no_grad():
            logps = action_logps(there, sample.batch.ids, sample.batch.mask)
        summed[name] = logps.double().sum(1).cpu()
    true = summed["post"] - summed["old"]
    worst = float((recorded["post"] - recorded["old"] - true).abs().max())
    assert true.abs().max() > 0.01, "the update moved nothing that could be compared"
    assert worst < 1e-2
    tell(f"mean |Δ| {true.abs().mean():.2f} nats a response, at most {worst:.0e} off")


def test_moments_in_main_memory_change_no_update(model, tell):
    """Seconds of taking them out and bringing them back, and the bytes that are free meanwhile."""
    weights, counted, seconds = [], [], 0.0
    for value in ("false", "true"):
        config, mine = settings(model, "updates=2", f"offload_moments={value}"), policy(model)
        updates, sample = updater(mine, config), batch(mine.model, 8)
        optimizer = updates._optimizer
        for step in range(3):
            with optimizer.moments_at_hand():
                one_step(updates, sample, step)
        start = now()
        counted = [torch.cuda.memory_allocated() if CUDA else 0]
        with optimizer.moments_at_hand():
            counted.append(torch.cuda.memory_allocated() if CUDA else 0)
        seconds = now() - start
        weights.append(torch.cat([p.detach().flatten() for p in mine.model.parameters()]))
        del mine, optimizer, updates
    close("the weights", weights[1], weights[0], 1e-5)
    free = counted[1] - counted[0]
    assert not CUDA or free >= 8 * len(weights[0])
    tell(f"{free / 2**30:.1f} GiB free, {seconds:.2f} s in and out")


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


def waits_of(work: Callable[[], object]) -> Counter[str]:
    """The waits, as CUDA itself counts them where there is one."""
    if not CUDA:
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


def test_device_synchronisations_per_micro_batch(model, tell):
    mine = policy(model)
    sample = batch(mine.model, 8)
    sample.ref = sample.old.clone()
    counted = {}
    for tokens in (1, 10**6):
        config = settings(model, "updates=1", f"micro_tokens={tokens}", "kl_coefficient=0.01",
                          "entropy_coefficient=0.01")
        updates = updater(mine, config)
        counted[tokens] = waits_of(lambda u=updates: one_step(u, sample))
    # Eight micro-batches against one: what an update costs once drops out.
    each = {name: (n - counted[10**6][name]) / 7 for name, n in counted[1].items()}
    each = {name: n for name, n in each.items() if n}
    tell(f"{sum(each.values()):g} in each, LLDS, KL and entropy on: {each}")
    assert sum(each.values()) <= MOST_WAITS
