"""Seconds and memory; a step beside TRL's on the same task, by benchmarks/trl.py."""

from __future__ import annotations

from statistics import mean, median
from typing import Any

import pytest
import torch
from lldscope_trainer.policy import logprobs
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks import trl
from tests.gpu.made import CUDA, DEVICE, SMALL, batch, now, policy, settings, size, updater
from tests.helpers.keeper import one_step

SLOWEST = 1.0
"""Times TRL's step."""
LEAST_MFU = 0.25
"""Of the updates on a 0.5B policy: model FLOP utilisation (arXiv 2204.02311, appendix B)."""
PEAKS = {
    "H200": 989e12, "H100 80GB HBM3": 989e12, "H100 PCIe": 756e12, "A100-SXM4-80GB": 312e12,
    "L40S": 362e12, "L4": 121e12,
}
"""Dense bfloat16 operations per second with float32 accumulation, by the exact name of the card."""


@pytest.mark.engine("trl")
def test_a_step_beside_trls(model, tell, tmp_path):
    """A few steps of both in turns."""
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    case = trl.Case(
        "the made policy", None, size(256, 16), size(6, 2), device=DEVICE.type,
        dtype="bfloat16" if CUDA else "float32",
    )
    questions = trl.draw_questions(trl.WARM_UP + case.rounds)
    ours = trl.Ours(case, model, questions, tmp_path)
    theirs, clock = trl.their_trainer(case, model, questions, tmp_path, ours)
    theirs.train()
    ours.recorder.close()
    mine, other = (median(wall for wall, _ in s.seconds[trl.WARM_UP :]) for s in (ours, clock))
    rate = mean(ours.recorder.sampled[trl.WARM_UP :]) / mine
    tell(f"{mine:.2f} s, TRL {other:.2f} s: {mine / other:.2f} of its time; {rate:.0f} tokens/s")
    # On the CPU sizes are so small, and the machine so shared, that only the logic is tried.
    if CUDA:
        tell(f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, TRL's model included")
        assert mine <= SLOWEST * other


def operations(model: Any, lengths: list[int], targets: int) -> int:
    """Of a forward and backward pass over rows of these lengths, `targets` tokens of which get
    logits: three times those of a forward pass, which takes 2·W·n in its linear layers of W weights
    and, in each layer, 2·H·n² in causal attention of width H."""
    decoder, head, config = model.get_decoder(), model.get_output_embeddings(), model.config
    linear = sum(
        m.in_features * m.out_features for m in decoder.modules()
        if isinstance(m, torch.nn.Linear)
    )
    attention = config.num_hidden_layers * config.hidden_size
    rows = sum(2 * linear * n + 2 * attention * n * n for n in lengths)
    return 3 * (rows + 2 * head.in_features * head.out_features * targets)


@pytest.mark.parametrize("head", ["float32", "bfloat16"])
def test_speed_mfu_and_memory_of_updates(model, tell, head):
    mine = policy(model, torch.bfloat16, head_dtype=head)
    sample = batch(mine.model, size(64, 8))
    micro_tokens = max(sample.lengths) * size(16, 4)
    config = settings(model, "updates=2", f"micro_tokens={micro_tokens}", "dtype=bfloat16",
                      f"head_dtype={head}")
    updates = updater(mine, config)
    one_step(updates, sample, 0)
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    start = now()
    one_step(updates, sample, 1)
    seconds = now() - start
    rate = operations(mine.model, sample.lengths, int(sample.mask.sum())) / seconds
    tell(f"{sum(sample.lengths) / seconds:.3g} tokens/s, {rate / 1e12:.3g} TFLOP/s")
    if CUDA:
        tell(f"peak {torch.cuda.max_memory_allocated() / 2**30:.3g} GiB")
        if peak := PEAKS.get(torch.cuda.get_device_name().removeprefix("NVIDIA ")):
            tell(f"{rate / peak:.0%} MFU")
            assert head == "bfloat16" or rate / peak >= LEAST_MFU


QWEN_3B = {
    "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 11_008,
    "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
}


@pytest.mark.parametrize("head", ["float32", "bfloat16"])
def test_a_pass_of_a_3b(tell, head):
    """Forward and backward of 4 × 4,096 tokens, bfloat16 weights, recomputing, entropy on."""
    with DEVICE:
        config = Qwen2Config(**{"tie_word_embeddings": True, **size(QWEN_3B, SMALL)})
        model: Any = Qwen2ForCausalLM(config).eval().to(torch.bfloat16)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.compute_dtype, model.head_dtype = torch.bfloat16, head
    ids = torch.randint(20, 2000, (4, size(4096, 64)), device=DEVICE)
    mask = (torch.rand(ids.shape, device=DEVICE) < 0.4).long()
    mask[:, 0] = 0
    seconds = []
    for _ in range(3):  # the first one chooses kernels
        model.zero_grad()
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        start = now()
        scores = logprobs.action_scores(model, ids, mask, entropy=True)
        (scores.logp.sum() + scores.entropy.sum()).backward()
        seconds.append(now() - start)
        assert torch.isfinite(scores.logp).all()
    tell(f"{min(seconds):.3g} s, {ids.numel() / min(seconds):.3g} tokens/s")
    if CUDA:
        tell(f"peak {torch.cuda.max_memory_allocated() / 2**30:.3g} GiB")
