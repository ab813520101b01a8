"""Log-probabilities of whole sequences: precision, attention, packing, memory, gates."""

from __future__ import annotations

import random
from typing import Any

import torch
from lldscope_trainer.policy import logprobs
from lldscope_trainer.policy.model import load_policy
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from lldscope.losses.llds import llds_loss

from .checks import Figures, Place, check, now
from .made import batch, gradient, policy, rollouts

SLOW_KERNEL = "aten::_scaled_dot_product_attention_math"
KERNELS = "aten::_scaled_dot_product_"


def gap(results: Tensor, expected: Tensor, mask: Tensor) -> tuple[float, float]:
    """(mean, largest) absolute difference over the action tokens, nats."""
    apart = (results.double().cpu() - expected.double().cpu()).abs()[mask.bool().cpu()]
    return float(apart.mean()), float(apart.max())


@check("log-probabilities against float64 on the CPU", rank=1)
def precision(place: Place) -> tuple[str, Figures]:
    ids, mask, _ = rollouts(place, 2)
    cut = place.size(128, 48)
    ids, mask = ids[:, :cut], mask[:, :cut]
    exact = load_policy(place.model, torch.device("cpu")).model.double()
    with torch.no_grad():
        logits = exact(input_ids=ids.cpu(), use_cache=False).logits.double()
        whole = logits.log_softmax(-1)[:, :-1].gather(-1, ids.cpu()[:, 1:, None])[..., 0]
        expected = torch.nn.functional.pad(whole, (1, 0))
        del exact
        figures = {}
        for name in ("float32", "bfloat16"):
            model = policy(place, getattr(torch, name)).model
            results = logprobs.action_logps(model, ids, mask)
            figures[f"{name}_mean"], figures[f"{name}_max"] = gap(results, expected, mask)
    assert figures["float32_max"] < 2e-3, f"float32 is {figures['float32_max']:.1e} nats off"
    assert figures["bfloat16_mean"] < 0.05, f"bfloat16 is {figures['bfloat16_mean']:.1e} nats off"
    message = "largest gap {float32_max:.0e} nats in float32, {bfloat16_max:.0e} in bfloat16"
    return message.format(**figures), figures


@check("the attention kernels that run", rank=1)
def attention(place: Place) -> tuple[str, Figures]:
    ids, mask, _ = rollouts(place, 2)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if place.cuda else [])]
    kernels: Figures = {}
    for dtype in (torch.bfloat16, torch.float32):
        model = policy(place, dtype).model
        with profile(activities=activities) as records:
            logprobs.action_logps(model, ids, mask).sum().backward()
        names = {event.key for event in records.key_averages() if event.key.startswith(KERNELS)}
        kernels[str(dtype).removeprefix("torch.")] = sorted(
            name.removeprefix(KERNELS) for name in names if "backward" not in name
        )
    assert kernels["bfloat16"], "no call of torch's fused attention was seen"
    unfused = SLOW_KERNEL.removeprefix(KERNELS)
    assert unfused not in kernels["bfloat16"], f"attention runs unfused ({SLOW_KERNEL})"
    message = (f"{dtype}: {', '.join(names)}" for dtype, names in kernels.items())
    return "; ".join(message), {"kernels": kernels}


@check("packed rows are padded rows", rank=1)
def packing(place: Place) -> tuple[str, Figures]:
    """Against float32, for both: the kernel of packed rows adds up in another order. Seconds of a
    forward and backward pass over rows of which half would be padding."""
    ids, mask, lengths = rollouts(place, 16)
    exact = None
    figures: Figures = {}
    for name, dtype, packed in (
        ("exact", torch.float32, False), ("padded", torch.bfloat16, False),
        ("packed", torch.bfloat16, True),
    ):
        model = policy(place, dtype, packing=packed).model
        seconds = []
        for _ in range(3):  # the first one chooses kernels
            model.zero_grad()
            start = now(place)
            logps = logprobs.action_logps(model, ids, mask)
            logps.sum().backward()
            seconds.append(now(place) - start)
        exact = logps.detach() if exact is None else exact
        figures[name] = {"s": min(seconds), "mean": gap(logps.detach(), exact, mask)[0]}
        del model
    padded, packed_rows = figures["padded"], figures["packed"]
    assert packed_rows["mean"] < 2 * padded["mean"], f"{figures} nats a token off float32"
    return (
        f"{packed_rows['mean']:.0e} nats a token off float32, padded {padded['mean']:.0e}; "
        f"{packed_rows['s']:.3f} s, padded {padded['s']:.3f} s, "
        f"{sum(lengths) / ids.numel():.0%} of the padded tokens are real"
    ), figures


PEAK_ROWS = 16
MOST_OF_LOGITS = 0.6
"""What a pass may take beside weights and gradients, as a share of all its logits at once: by
arithmetic 0.45 on a GPU."""


@check("peak memory of a pass does not grow with vocabulary × length", rank=1)
def peak(place: Place) -> tuple[str, Figures]:
    place.need_cuda("peak memory")
    model = policy(place, torch.bfloat16, gradient_checkpointing=True)
    sample = batch(place, model.model, PEAK_ROWS, long=True)
    whole = 4 * int(sample.mask.sum()) * model.model.get_output_embeddings().out_features
    gradient_bytes = 4 * sum(p.numel() for p in model.model.parameters())
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradient(place, model, sample, "dtype=bfloat16", "micro_tokens=1000000")
    beside = torch.cuda.max_memory_allocated() - before - gradient_bytes
    message = f"{beside / 2**30:.1f} GiB beside weights and gradients; all logits alone would take "
    message += f"{whole / 2**30:.1f} GiB"
    assert beside < MOST_OF_LOGITS * whole, f"{message}; allowed {MOST_OF_LOGITS:g} of it"
    return message, {"bytes": beside, "logits": whole}


BANDS = (0.0, 1e-4, 1e-3, 1e-2, 0.1)
"""Dead bands that are tried, nats."""
UPDATE = 1e-6
"""How far an update moves a weight: AdamW's by about the learning rate, here the paper's."""


@check("gates that rounding opens", rank=1)
def gates(place: Place) -> tuple[str, Figures]:
    """In bfloat16. Unchanged weights, scored in other passes and, with gradient, in the same ones:
    how far apart, and which share of tokens LLDS penalises, by dead band. Weights moved by an
    update: which share it penalises otherwise than in float32. The least dead band at which that
    is under 1 % is the one for `llds_dead_band` (trainer/configs/search-r1-3b.yaml)."""
    half = policy(place, torch.bfloat16, gradient_checkpointing=True).model
    exact = policy(place).model
    sample = batch(place, half, 32)
    order = list(range(32))
    random.Random(1).shuffle(order)
    passes = [sorted(order[i : i + 4], key=lambda r: sample.lengths[r]) for i in range(0, 32, 4)]

    def scored(model: Any, parts: list[list[int]]) -> Tensor:
        def forward(*rows: Tensor) -> logprobs.TokenScores:
            logp = logprobs.action_scores(model, *rows).logp.detach()
            return logprobs.TokenScores(logp, None, None)

        return sample.score_passes(forward, parts).logp

    def penalised(new: Tensor, old: Tensor, band: float) -> Tensor:
        advantages = torch.ones(len(new), device=place.device)
        return llds_loss(
            new, old, sample.mask, advantages, gate="action", coefficient=0.2, dead_band=band
        ).penalty > 0

    n_tokens = int(sample.mask.sum())
    figures: Figures = {}
    for model in (half, exact):
        # Random weights are nearly uniform: give the logits a spread like a trained policy's.
        model.get_decoder().norm.weight.data.mul_(6)
    with torch.no_grad():
        old, exact_old = scored(half, passes), scored(exact, passes)
        other = scored(half, logprobs.by_tokens(sample.lengths, range(32), 4 * max(sample.lengths)))
    for name, new in (("other passes", other), ("same passes", scored(half, passes))):
        apart = (new - old).abs()[sample.mask.bool()]
        figures[name] = {"mean": float(apart.mean()), "max": float(apart.max())} | {
            f"band {band:g}": int(penalised(new, old, band).sum()) / n_tokens for band in BANDS
        }
    with torch.no_grad():
        for one, two in zip(half.parameters(), exact.parameters(), strict=True):
            two += UPDATE * torch.randn_like(two).sign()
            one.copy_(two)
        new, exact_new = scored(half, passes), scored(exact, passes)
    noise = ((new - old) - (exact_new - exact_old)).abs()[sample.mask.bool()]
    figures["moved weights"] = {"mean": float(noise.mean()), "max": float(noise.max())} | {
        f"band {band:g}":
        int((penalised(new, old, band) ^ penalised(exact_new, exact_old, band)).sum()) / n_tokens
        for band in BANDS
    }
    assert figures["same passes"]["max"] == 0, f"the same passes differ: {figures}"
    message = (
        f"{n}: " + ", ".join(f"{k} {v:.2g}" for k, v in f.items()) for n, f in figures.items()
    )
    return "; ".join(message), figures
