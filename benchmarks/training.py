"""What LLDS, the re-score, retention and the log-probabilities cost.

Steps of the tiny policy in turns, at a learning rate too small to change a float32 weight: all
trainers sample the same rollouts, so their steps differ in what is switched on and in nothing else.
A whole step is noisy, so the calls in question are also timed by themselves, LLDS's again and again
on the tensors of one step. Seconds are those of the processor: the clock on the wall would count
what else a shared machine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import torch
from lldscope_trainer.algorithms import update
from lldscope_trainer.config import load_config
from lldscope_trainer.policy import logprobs as scoring
from lldscope_trainer.train import Trainer
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config, Qwen2ForCausalLM

import lldscope
from lldscope.core.schema import RETENTION_STEPS

WARM_UP, STEPS, REPEATS = 1, 8, 15
FIXED = [
    "prompts=16", "top_p=0.9", "lr=1e-12", "warmup_steps=0", "tokens_every=0", "eval_questions=0",
    "device=cpu",
]
VARIANTS = {
    "bare": ["rescore_share=0"],
    "llds": ["rescore_share=0", "llds=action"],
    "shipped": [],
    "every rollout": ["rescore_share=1"],
}

VOCABULARIES = (4096, 16384, 65536)
POSITIONS = (512, 1024, 2048)
BLOCK = 2**25
"""Bytes of logits at once in the table, an eighth of what is shipped: the bench stays small."""


def main() -> None:
    steps()
    retention()
    memory()


def steps() -> None:
    """LLDS and the re-score, as shares of a step."""
    trainers = {
        name: Trainer(load_config("tiny", [*FIXED, *changed]), lldscope.NullRecorder())
        for name, changed in VARIANTS.items()
    }
    rescores = {name: Watched(trainer, "_rescore") for name, trainer in trainers.items()}
    calls = Watched(update, "llds_loss")
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for step in range(WARM_UP + STEPS):
        for name, trainer in trainers.items():
            cost = cpu_seconds(lambda t=trainer, s=step: t.step(s))
            if step >= WARM_UP:
                seconds[name].append(cost)
    bare = median(seconds["bare"])
    last = calls.arguments[-len(calls.arguments) // (WARM_UP + STEPS) :]
    llds = sum(llds_seconds(*call) for call in last)
    print(row("LLDS: its calls in a step and their backward pass", llds, bare, "under 2 %"))
    print(paired("LLDS: whole steps, with against without", seconds["llds"], seconds["bare"]))
    for name, goal in (("every rollout", "under 15 %"), ("shipped", "under 3 %")):
        share = f"re-score, share {trainers[name].config.rescore_share:g}"
        cost = median(rescores[name].seconds[WARM_UP:])
        print(row(f"{share}: its call in a step", cost, bare, goal))
        print(paired(f"{share}: whole steps, with against without", seconds[name], seconds["bare"]))


def retention() -> None:
    """Scoring what is kept of earlier steps, as a share of a step of the study's setting."""
    config = load_config("study/base.yaml", FIXED)
    trainer = Trainer(config, lldscope.NullRecorder())
    calls = Watched(trainer, "_retained")
    totals = [cpu_seconds(lambda s=s: trainer.step(s)) for s in range(RETENTION_STEPS + STEPS)]
    n = config.retention * RETENTION_STEPS
    part, whole = (median(values[RETENTION_STEPS:]) for values in (calls.seconds, totals))
    print(row(f"retention: scoring {n} kept responses in a step", part, whole, "under 3 %"))


class Watched:
    """Times every call of a function or method and keeps its arguments."""

    def __init__(self, owner: Any, name: str) -> None:
        self.seconds: list[float] = []
        self.arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._call = getattr(owner, name)
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.arguments.append((args, kwargs))
        start = time.process_time()
        result = self._call(*args, **kwargs)
        self.seconds.append(time.process_time() - start)
        return result


def llds_seconds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """One LLDS call of a step, and its gradient if the step took one."""
    new, *others = args

    def call() -> None:
        leaf = new.detach().requires_grad_(new.requires_grad)
        loss = update.llds_loss(leaf, *others, **kwargs).loss
        if new.requires_grad:
            loss.backward()

    return cpu_median(call)


def memory() -> None:
    """Peak memory of a forward and backward pass: log-probabilities in chunks against a
    log-softmax over all logits."""
    shipped, scoring.LOGITS_BYTES = scoring.LOGITS_BYTES, BLOCK
    print(f"peak MiB above the weights, in chunks of {BLOCK // 2**20} MiB / all logits at once:")
    print(f"| vocabulary | {' | '.join(f'{n} positions' for n in POSITIONS)} |")
    print("|---" * (len(POSITIONS) + 1) + "|")
    try:
        for vocabulary in VOCABULARIES:
            model = headed(vocabulary)
            cells = []
            for n in POSITIONS:
                ids = torch.arange(n).remainder(vocabulary)[None]
                mask = torch.ones_like(ids)
                mask[:, 0] = 0
                peaks = [
                    peak_bytes(logps, model, ids, mask)
                    for logps in (scoring.action_logps, plain_logps)
                ]
                cells.append(" / ".join(f"{peak / 2**20:.0f}" for peak in peaks))
            print(f"| {vocabulary} | {' | '.join(cells)} |")
    finally:
        scoring.LOGITS_BYTES = shipped


def headed(vocabulary: int) -> Any:
    """A model that is almost nothing but its head."""
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True,
        max_position_embeddings=max(POSITIONS), bos_token_id=None, eos_token_id=None,
    )
    return Qwen2ForCausalLM(config).eval()


def plain_logps(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """The twin of `scoring.action_logps`: logits of every position at once."""
    logps = model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
    return logps[:, :-1].gather(-1, ids[:, 1:, None])[..., 0] * mask[:, 1:]


def peak_bytes(logps: Callable[..., Tensor], model: Any, ids: Tensor, mask: Tensor) -> int:
    """Most bytes that torch had allocated at once in a forward and a backward pass of `logps`,
    beyond those it began with."""
    model.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        logps(model, ids, mask).sum().backward()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def cpu_seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def cpu_median(work: Callable[[], Any]) -> float:
    return median(cpu_seconds(work) for _ in range(REPEATS))


def row(what: str, part: float, whole: float, goal: str) -> str:
    part, whole = part * 1e3, whole * 1e3
    return f"| {what} | {part:.1f} ms of a {whole:.0f} ms step: {part / whole:.1%} | {goal} |"


def paired(what: str, with_: list[float], without: list[float]) -> str:
    """Median and middle half of the ratios of steps that did the same otherwise."""
    ratios = [a / b for a, b in zip(with_, without, strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    return (
        f"| {what} | ratio {middle:.3f} ({low:.3f} to {high:.3f}, middle half of {len(ratios)}) | |"
    )


if __name__ == "__main__":
    main()
