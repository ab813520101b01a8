"""A step beside TRL's on the same task, by the benchmark of benchmarks/trl.py."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from lldscope_trainer.algorithms.update import Updater
from lldscope_trainer.optim.optimizer import TorchOptimizer
from lldscope_trainer.policy import logprobs
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks import trl
from tests.helpers.keeper import one_step

from .checks import Figures, Place, check, need, now
from .made import SMALL, alone, batch, policy, settings

SLOWEST = 1.0
"""Times TRL's step."""
LEAST_MFU = 0.25
"""Of the updates on a 0.5B policy: model FLOP utilisation (arXiv 2204.02311, appendix B)."""
PEAKS = {
    "H200": 989e12, "H100 80GB HBM3": 989e12, "H100 PCIe": 756e12, "A100-SXM4-80GB": 312e12,
    "L40S": 362e12, "L4": 121e12,
}
"""Dense bfloat16 operations per second with float32 accumulation, by the exact name of the card."""


def race(place: Place) -> tuple[trl.Ours, trl.Clock]:
    """A few steps of both in turns."""
    need("trl")
    case = trl.Case(
        "the made policy", None, place.size(256, 16), place.size(6, 2),
        device=place.device.type, dtype="float32" if place.small else "bfloat16",
    )
    questions = trl.draw_questions(trl.WARM_UP + case.rounds)
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        ours = trl.Ours(case, place.model, questions, Path(folder))
        theirs, clock = trl.their_trainer(case, place.model, questions, Path(folder), ours)
        theirs.train()
        ours.recorder.close()
    return ours, clock


@check("a step beside TRL's", rank=3)
def beside_trl(place: Place) -> tuple[str, Figures]:
    if place.cuda:
        torch.cuda.reset_peak_memory_stats()
    ours, clock = race(place)
    mine, other = (median(wall for wall, _ in s.seconds[trl.WARM_UP :]) for s in (ours, clock))
    tokens = sum(ours.recorder.sampled[trl.WARM_UP :]) / len(ours.recorder.sampled[trl.WARM_UP :])
    rate = tokens / mine
    figures: Figures = {"seconds": mine, "seconds_trl": other, "ratio": mine / other, "rate": rate}
    message = (
        f"{mine:.2f} s, TRL {other:.2f} s: {mine / other:.2f} of its time; {rate:.0f} tokens/s"
    )
    if place.cuda:
        figures["peak_bytes"] = torch.cuda.max_memory_allocated()
        message += f"; peak {figures['peak_bytes'] / 2**30:.1f} GiB, TRL's model included"
    # On the CPU sizes are so small, and the machine so shared, that only the logic is tried.
    assert place.small or mine <= SLOWEST * other, f"{message}; allowed {SLOWEST:g}"
    return message, figures


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


@check("updates by head_dtype: speed, MFU, memory", rank=1)
def updates(place: Place) -> tuple[str, Figures]:
    peak = place.cuda and PEAKS.get(torch.cuda.get_device_name().removeprefix("NVIDIA "))
    figures: Figures = {}
    for head in ("float32", "bfloat16"):
        model = policy(place, torch.bfloat16, head_dtype=head)
        sample = batch(place, model.model, place.size(64, 8))
        config = settings(
            place, "updates=2", f"micro_tokens={max(sample.lengths) * place.size(16, 4)}",
            "dtype=bfloat16",
            f"head_dtype={head}",
        )
        updater = Updater(config, TorchOptimizer(model, config, alone(place)), alone(place))
        one_step(updater, sample, 0)
        if place.cuda:
            torch.cuda.reset_peak_memory_stats()
        start = now(place)
        one_step(updater, sample, 1)
        seconds = now(place) - start
        rate = operations(model.model, sample.lengths, int(sample.mask.sum())) / seconds
        figures[head] = {"tokens/s": sum(sample.lengths) / seconds, "TFLOP/s": rate / 1e12}
        if place.cuda:
            figures[head]["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
        if peak:
            figures[head]["MFU"] = rate / peak
        del model, updater
    message = "; ".join(_listed(name, values) for name, values in figures.items())
    mfu = figures["float32"].get("MFU")
    assert mfu is None or mfu >= LEAST_MFU, f"{message}; floor {LEAST_MFU:.0%} MFU"
    return message, figures


def _listed(name: str, figures: Figures) -> str:
    return f"{name}: " + ", ".join(f"{figure:.3g} {unit}" for unit, figure in figures.items())


QWEN_3B = {
    "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 11_008,
    "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
}


@check("a pass of Qwen2.5-3B", rank=1)
def pass_of_3b(place: Place) -> tuple[str, Figures]:
    """Forward and backward of 4 × 4,096 tokens, bfloat16 weights, recomputing, entropy on."""
    shape: dict[str, Any] = SMALL if place.small else QWEN_3B
    with torch.device(place.device):
        config = Qwen2Config(**{"tie_word_embeddings": True, **shape})
        model: Any = Qwen2ForCausalLM(config).eval().to(torch.bfloat16)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.compute_dtype = torch.bfloat16
    ids = torch.randint(20, 2000, (4, place.size(4096, 64)), device=place.device)
    mask = (torch.rand(ids.shape, device=place.device) < 0.4).long()
    mask[:, 0] = 0
    figures: Figures = {}
    for head in ("float32", "bfloat16"):
        model.head_dtype, seconds = head, []
        for _ in range(3):  # the first one chooses kernels
            model.zero_grad()
            if place.cuda:
                torch.cuda.reset_peak_memory_stats()
            start = now(place)
            scores = logprobs.action_scores(model, ids, mask, entropy=True)
            (scores.logp.sum() + scores.entropy.sum()).backward()
            seconds.append(now(place) - start)
            assert torch.isfinite(scores.logp).all()
        figures[head] = {"s": min(seconds), "tokens/s": ids.numel() / min(seconds)}
        if place.cuda:
            figures[head]["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
    return "; ".join(_listed(name, values) for name, values in figures.items()), figures
