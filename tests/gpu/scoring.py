"""Log-probabilities of whole sequences: precision, the head in chunks, recomputing, attention."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from lldscope_trainer.policy import logprobs
from lldscope_trainer.policy.head import head_logits
from lldscope_trainer.policy.model import load_policy
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from .checks import Figures, NotRun, Place, check, close
from .made import batch, gradient, policy, rollouts

SLOW_KERNEL = "aten::_scaled_dot_product_attention_math"
KERNELS = "aten::_scaled_dot_product_"


def gap(found: Tensor, expected: Tensor, mask: Tensor) -> tuple[float, float]:
    """(mean, largest) absolute difference over the action tokens, nats."""
    apart = (found.double().cpu() - expected.double().cpu()).abs()[mask.bool().cpu()]
    return float(apart.mean()), float(apart.max())


@check("log-probabilities against float64 on the CPU")
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
            found = logprobs.action_logps(model, ids, mask)
            figures[f"{name}_mean"], figures[f"{name}_max"] = gap(found, expected, mask)
    assert figures["float32_max"] < 2e-3, f"float32 is {figures['float32_max']:.1e} nats off"
    assert figures["bfloat16_mean"] < 0.05, f"bfloat16 is {figures['bfloat16_mean']:.1e} nats off"
    said = "largest gap {float32_max:.0e} nats in float32, {bfloat16_max:.0e} in bfloat16"
    return said.format(**figures), figures


@check("the output layer in less precision")
def output_layer(place: Place) -> tuple[str, Figures]:
    model = policy(place).model
    rows, width = place.size(4096, 64), model.config.hidden_size
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, width, generator=generator).to(place.device).requires_grad_()
    weight = model.get_output_embeddings().weight.detach()
    exact = hidden.detach().cpu()[:64].double() @ weight.cpu().double().T
    expected = exact.log_softmax(-1)
    figures: Figures = {}
    allowed = {"float32": 1e-4, "tf32": 0.05, "bfloat16": 0.2}
    for name, most in allowed.items():
        if name == "tf32" and not place.cuda:
            continue
        model.head_dtype = name
        seconds = []
        for _ in range(3):  # the first one chooses kernels
            started = now(place)
            logits = head_logits(model, hidden)
            logits.logsumexp(-1).sum().backward()
            seconds.append(now(place) - started)
        found = logits[:64].detach().double().cpu().log_softmax(-1)
        figures[f"{name}_seconds"] = min(seconds)
        figures[f"{name}_max"] = float((found - expected).abs().max())
        assert figures[f"{name}_max"] < most, f"{name}: {figures[f'{name}_max']:.1e} nats off"
        assert torch.isfinite(hidden.grad).all()
    tried = [name for name in allowed if f"{name}_max" in figures]
    said = (f"{n} {figures[n + '_max']:.0e} nats, {figures[n + '_seconds']:.3f} s" for n in tried)
    return f"{rows} tokens, forward and backward: {'; '.join(said)}", figures


def now(place: Place) -> float:
    """Seconds, once the device has done what it was given."""
    if place.cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def with_blocks(size: int, work: Callable[[], Tensor]) -> Tensor:
    """`work` with blocks of logits of so many bytes."""
    shipped, logprobs.LOGITS_BYTES = logprobs.LOGITS_BYTES, size
    try:
        return work()
    finally:
        logprobs.LOGITS_BYTES = shipped


@check("the head in chunks is the head")
def chunks(place: Place) -> tuple[str, Figures]:
    model = policy(place)
    made = batch(place, model.model, 4)
    row = 4 * model.model.get_output_embeddings().out_features
    many, one = (
        with_blocks(size, lambda: gradient(place, model, made)) for size in (17 * row, 2**40)
    )
    error = close("the gradient", many, one, 1e-4)
    return f"chunks of 17 tokens: gradient {error:.0e} off", {"error": error}


@check("gradient checkpointing changes nothing")
def checkpointing(place: Place) -> tuple[str, Figures]:
    plain = policy(place)
    made = batch(place, plain.model, 4)
    expected = gradient(place, plain, made)
    recomputed = gradient(place, policy(place, gradient_checkpointing=True), made)
    error = close("the gradient", recomputed, expected, 1e-4)
    return f"gradient {error:.0e} off", {"error": error}


@check("the attention kernel that runs")
def attention(place: Place) -> tuple[str, Figures]:
    ids, mask, _ = rollouts(place, 2)
    model = policy(place, torch.bfloat16).model
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if place.cuda else [])]
    with profile(activities=activities) as seen:
        logprobs.action_logps(model, ids, mask).sum().backward()
    names = {event.key for event in seen.key_averages() if event.key.startswith(KERNELS)}
    forward = sorted(name.removeprefix(KERNELS) for name in names if "backward" not in name)
    assert forward, "no call of torch's fused attention was seen"
    assert SLOW_KERNEL not in names, f"attention runs unfused ({SLOW_KERNEL})"
    return f"bfloat16: {', '.join(forward)}", {"kernels": forward}


@check("peak memory of a pass does not grow with vocabulary × length")
def peak(place: Place) -> tuple[str, Figures]:
    place.need_cuda("peak memory")
    model = policy(place, torch.bfloat16, gradient_checkpointing=True)
    made = batch(place, model.model, 8)
    tokens = int(made.mask.sum())
    whole = 4 * tokens * model.model.get_output_embeddings().out_features
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradient(place, model, made, "dtype=bfloat16")
    peak_bytes = torch.cuda.max_memory_allocated() - before
    weights = 4 * sum(p.numel() for p in model.model.parameters())
    room = weights + 24 * logprobs.LOGITS_BYTES + 2**30
    if whole < 16 * logprobs.LOGITS_BYTES:
        raise NotRun("all logits of these rollouts fit a few chunks")
    assert peak_bytes < room, f"{peak_bytes / 2**30:.1f} GiB, expected below {room / 2**30:.1f}"
    said = f"{peak_bytes / 2**30:.1f} GiB with {weights / 2**30:.1f} GiB of gradients"
    return f"{said}; all logits alone {whole / 2**30:.1f} GiB", {"bytes": peak_bytes}
