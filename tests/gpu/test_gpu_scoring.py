"""Log-probabilities of whole sequences: precision, attention, packing, memory, gates."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lldscope_trainer.policy import logprobs
from lldscope_trainer.policy.model import load_policy
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from lldscope.losses.llds import llds_loss
from tests.gpu.made import CUDA, DEVICE, batch, now, policy, rollouts, settings, size, updater
from tests.helpers.keeper import one_step

SLOW_KERNEL = "aten::_scaled_dot_product_attention_math"
KERNELS = "aten::_scaled_dot_product_"


def gap(results: Tensor, expected: Tensor, mask: Tensor) -> tuple[float, float]:
    """(mean, largest) absolute difference over the action tokens, nats."""
    apart = (results.double().cpu() - expected.double().cpu()).abs()[mask.bool().cpu()]
    return float(apart.mean()), float(apart.max())


def test_log_probabilities_against_float64_on_the_cpu(model, tell):
    ids, mask, _ = rollouts(2)
    cut = size(128, 48)
    ids, mask = ids[:, :cut], mask[:, :cut]
    exact = load_policy(model, torch.device("cpu")).model.double()
    with torch.no_grad():
        logits = exact(input_ids=ids.cpu(), use_cache=False).logits.double()
        whole = logits.log_softmax(-1)[:, :-1].gather(-1, ids.cpu()[:, 1:, None])[..., 0]
        expected = torch.nn.functional.pad(whole, (1, 0))
        del exact
        gaps = [
            gap(logprobs.action_logps(policy(model, dtype).model, ids, mask), expected, mask)
            for dtype in (torch.float32, torch.bfloat16)
        ]
    (_, single), (half, largest) = gaps
    tell(f"largest gap {single:.0e} nats in float32, {largest:.0e} in bfloat16")
    assert single < 2e-3
    assert half < 0.05, "the mean in bfloat16"


def test_attention_kernels(model, tell):
    ids, mask, _ = rollouts(2)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if CUDA else [])]
    kernels = {}
    for dtype in (torch.bfloat16, torch.float32):
        mine = policy(model, dtype).model
        with profile(activities=activities) as records:
            logprobs.action_logps(mine, ids, mask).sum().backward()
        names = {event.key for event in records.key_averages() if event.key.startswith(KERNELS)}
        kernels[dtype] = sorted(
            name.removeprefix(KERNELS) for name in names if "backward" not in name
        )
    tell("; ".join(f"{dtype}: {', '.join(names)}" for dtype, names in kernels.items()))
    assert kernels[torch.bfloat16], "no call of torch's fused attention was seen"
    assert SLOW_KERNEL.removeprefix(KERNELS) not in kernels[torch.bfloat16]


def test_packed_rows_are_padded_rows(model, tell):
    """Against float32, for both: the kernel of packed rows adds up in another order. Seconds of a
    forward and backward pass over rows of which half would be padding."""
    ids, mask, lengths = rollouts(16)
    exact, gaps, seconds = None, {}, {}
    for name, dtype in (
        ("exact", torch.float32), ("padded", torch.bfloat16), ("packed", torch.bfloat16)
    ):
        mine = policy(model, dtype, packing=name == "packed").model
        seconds[name] = math.inf
        for _ in range(3):  # the first one chooses kernels
            mine.zero_grad()
            start = now()
            logps = logprobs.action_logps(mine, ids, mask)
            logps.sum().backward()
            seconds[name] = min(seconds[name], now() - start)
        exact = logps.detach() if exact is None else exact
        gaps[name] = gap(logps.detach(), exact, mask)[0]
        del mine
    tell(
        f"{gaps['packed']:.0e} nats a token off float32, padded {gaps['padded']:.0e}; "
        f"{seconds['packed']:.3f} s, padded {seconds['padded']:.3f} s, "
        f"{sum(lengths) / ids.numel():.0%} of the padded tokens are real"
    )
    assert gaps["packed"] < 2 * gaps["padded"]


PEAK_ROWS = 16
MOST_OF_LOGITS = 0.6
"""What a pass may take beside weights and gradients, as a share of all its logits at once: by
arithmetic 0.45 on a GPU."""


@pytest.mark.cuda
def test_peak_memory_does_not_grow_with_vocabulary_times_length(model, tell):
    mine = policy(model, torch.bfloat16, gradient_checkpointing=True)
    sample = batch(mine.model, PEAK_ROWS, lengths=[2048] * PEAK_ROWS)
    whole = 4 * int(sample.mask.sum()) * mine.model.get_output_embeddings().out_features
    gradient_bytes = 4 * sum(p.numel() for p in mine.model.parameters())
    config = settings(
        model, "updates=1", "entropy_coefficient=0.01", "dtype=bfloat16", "micro_tokens=1000000"
    )
    updates = updater(mine, config)
    updates._optimizer.step = lambda: (0.0, True)  # without its moments
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    one_step(updates, sample)
    beside = torch.cuda.max_memory_allocated() - before - gradient_bytes
    tell(f"{beside / 2**30:.1f} GiB beside weights and gradients; all logits alone would take "
         f"{whole / 2**30:.1f} GiB")
    assert beside < MOST_OF_LOGITS * whole


BANDS = (0.0, 1e-4, 1e-3, 1e-2, 0.1)
"""Dead bands that are tried, nats."""
UPDATE = 1e-6
"""How far an update moves a weight: AdamW's by about the learning rate, here the paper's."""


def test_gates_that_rounding_opens(model, tell):
    """In bfloat16. Unchanged weights, scored in other passes and, with gradient, in the same ones:
    how far apart, and which share of tokens LLDS penalises, by dead band. Weights moved by an
    update: which share it penalises otherwise than in float32. The least dead band at which that
    is under 1 % is the one for `llds_dead_band` (trainer/configs/search-r1-3b.yaml)."""
    half = policy(model, torch.bfloat16, gradient_checkpointing=True).model
    exact = policy(model).model
    sample = batch(half, 32)
    order = list(range(32))
    random.Random(1).shuffle(order)
    passes = [sorted(order[i : i + 4], key=lambda r: sample.lengths[r]) for i in range(0, 32, 4)]

    def scored(model: Any, parts: list[list[int]]) -> Tensor:
        def forward(*rows: Tensor) -> logprobs.TokenScores:
            logp = logprobs.action_scores(model, *rows).logp.detach()
            return logprobs.TokenScores(logp, None, None)

        return sample.score_passes(forward, parts).logp

    def penalised(new: Tensor, old: Tensor, band: float) -> Tensor:
        advantages = torch.ones(len(new), device=DEVICE)
        return llds_loss(
            new, old, sample.mask, advantages, gate="action", coefficient=0.2, dead_band=band
        ).penalty > 0

    def describe(name: str, apart: Tensor, otherwise: Callable[[float], Tensor]) -> float:
        apart = apart.abs()[sample.mask.bool()]
        shares = (float(otherwise(band).sum()) / int(sample.mask.sum()) for band in BANDS)
        bands = (f"band {band:g} {share:.2g}" for band, share in zip(BANDS, shares, strict=True))
        tell(f"{name}: mean {apart.mean():.2g}, max {apart.max():.2g}, {', '.join(bands)}")
        return float(apart.max())

    for each in (half, exact):
        # Random weights are nearly uniform: give the logits a spread like a trained policy's.
        each.get_decoder().norm.weight.data.mul_(6)
    with torch.no_grad():
        old, exact_old = scored(half, passes), scored(exact, passes)
        other = scored(half, logprobs.by_tokens(sample.lengths, range(32), 4 * max(sample.lengths)))
    describe("other passes", other - old, lambda band: penalised(other, old, band))
    same = scored(half, passes)
    assert describe("same passes", same - old, lambda band: penalised(same, old, band)) == 0
    with torch.no_grad():
        for one, two in zip(half.parameters(), exact.parameters(), strict=True):
            two += UPDATE * torch.randn_like(two).sign()
            one.copy_(two)
        new, exact_new = scored(half, passes), scored(exact, passes)
    describe(
        "moved weights", (new - old) - (exact_new - exact_old),
        lambda band: penalised(new, old, band) ^ penalised(exact_new, exact_old, band),
    )
