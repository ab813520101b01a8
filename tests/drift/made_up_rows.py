"""Made-up rows of a step, and what a trainer's number could be of them: for the experiments behind
the atlas of trainers' metrics. Needs torch alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

RESPONSES, WIDTH, PROMPT = 16, 12, 3
LOW, HIGH = 0.1, 0.15
# Rank → mini-batch → micro-batches, as numbers of responses.
SHAPE = [[[1, 3], [2, 2]], [[3, 1], [1, 3]]]
Rows = list[dict[str, torch.Tensor]]


def made_up() -> Rows:
    random = torch.Generator().manual_seed(4)

    def normal(n: int, mean: float, sd: float) -> torch.Tensor:
        return mean + sd * torch.randn(n, generator=random)

    rows = []
    for i in range(RESPONSES):
        n = 2 + i * 7 % (WIDTH - 1)
        mask = torch.ones(n, dtype=torch.long)
        if n > 5 and i % 2:
            mask[2:4] = 0  # tool text
        old = normal(n, -1.5, 0.5).clamp(max=-0.01)
        rows.append({
            "responses": torch.arange(n) + 5, "prompts": torch.arange(PROMPT) + 1,
            "response_mask": mask, "old_log_probs": old, "log_probs": old + normal(n, 0.03, 0.2),
            "rollout_log_probs": old + normal(n, 0.02, 0.3),
            "ref_log_prob": old + normal(n, -0.1, 0.3), "entropy": normal(n, 1.0, 0.2),
            "inner_entropy": normal(n, 1.1, 0.2),
            "advantages": torch.full((n,), float(i % 4 - 1.5)),
            "score": torch.tensor(float(i % 3)),
        })
    return rows


def padded(rows: Rows, name: str, width: int = WIDTH) -> torch.Tensor:
    return torch.stack([torch.nn.functional.pad(r[name], (0, width - len(r[name]))) for r in rows])


def log_r(r: dict[str, torch.Tensor]) -> torch.Tensor:
    return r["old_log_probs"] - r["rollout_log_probs"]


def inner(r: dict[str, torch.Tensor]) -> torch.Tensor:
    return r["log_probs"] - r["old_log_probs"]


def to_ref(r: dict[str, torch.Tensor]) -> torch.Tensor:
    return r["log_probs"] - r["ref_log_prob"]


def branch(r: dict[str, torch.Tensor]) -> torch.Tensor:
    ratio, a = inner(r).exp(), r["advantages"]
    return ((ratio > 1 + HIGH) & (a > 0) | (ratio < 1 - LOW) & (a < 0)).float()


def loss(r: dict[str, torch.Tensor]) -> torch.Tensor:
    ratio, a = inner(r).exp(), r["advantages"]
    value = torch.maximum(-a * ratio, -a * ratio.clamp(1 - LOW, 1 + HIGH))
    return torch.where(a < 0, torch.minimum(-a * 3.0, value), value)


PER_TOKEN = {
    "entropy of the vocabulary, sampling policy": lambda r: r["entropy"],
    "entropy of the vocabulary, current policy": lambda r: r["inner_entropy"],
    "log π_old − log π_inner": lambda r: -inner(r),
    "k3 of the step": lambda r: inner(r).exp() - 1 - inner(r),
    "share of tokens on which the clip is active": branch,
    "share of tokens whose ratio is outside the clip": lambda r: (
        (inner(r).exp() > 1 + HIGH) | (inner(r).exp() < 1 - LOW)).float(),
    "k1 of current policy to reference": to_ref,
    "k3 of current policy to reference": lambda r: (-to_ref(r)).exp() - 1 + to_ref(r),
    "policy loss without KL term": loss,
    "advantage": lambda r: r["advantages"],
    "mean |log r|": lambda r: log_r(r).abs(),
    "mean log π_behaviour − log π_old": lambda r: -log_r(r),
    "mean r − 1 − log r (k3)": lambda r: log_r(r).exp() - 1 - log_r(r),
    "mean r² − 1": lambda r: (2 * log_r(r)).exp() - 1,
    "mean r, at most the threshold": lambda r: log_r(r).exp().clamp(max=1.2),
    "mean |π_old − π_behaviour|: of probabilities": lambda r: (
        r["old_log_probs"].exp() - r["rollout_log_probs"].exp()).abs(),
    "share of r above the threshold": lambda r: (log_r(r).exp() > 1.2).float(),
    "mean −log π_old": lambda r: -r["old_log_probs"],
    "mean −log π_behaviour": lambda r: -r["rollout_log_probs"],
}


def candidates(rows: Rows, cut: list[list[list[Rows]]]) -> Iterator[tuple[str, str, float]]:
    flat = [m for rank in cut for mini in rank for m in mini]
    for name, x in PER_TOKEN.items():
        def mean(of: Rows, x: Any = x) -> float:
            """Of tokens."""
            total = sum((x(r) * r["response_mask"]).sum().item() for r in of)
            return total / sum(r["response_mask"].sum().item() for r in of)

        def each(r: dict[str, torch.Tensor], x: Any = x) -> float:
            return ((x(r) * r["response_mask"]).sum() / r["response_mask"].sum()).item()

        minis = [concat(m for rank in cut for m in rank[i]) for i in (0, 1)]
        yield name, "action tokens of the batch", mean(rows)
        yield name, "action tokens of an update; updates weigh the same", average(map(mean, minis))
        yield (name, "action tokens of a micro-batch; ranks, micro-batches and updates weigh the "
               "same", average(map(mean, flat)))
        yield name, "responses, each its own mean over tokens", average(map(each, rows))
        yield (name, "responses of a micro-batch; micro-batches weigh the same",
               average(average(map(each, m)) for m in flat))
        sums = [(x(r) * r["response_mask"]).sum().item() for r in rows]
        yield name, "responses, each its own sum over tokens", average(sums)
        everywhere = sum(x(r).sum().item() for r in rows) / sum(len(r["responses"]) for r in rows)
        yield name, "tokens of the batch, with tool text", everywhere
    sums = torch.stack([(log_r(r) * r["response_mask"]).sum() for r in rows])
    means = torch.stack([(log_r(r) * r["response_mask"]).sum() / r["response_mask"].sum()
                         for r in rows])
    squares = "squared product of a response's r, − 1"
    yield f"mean {squares}", "responses", ((2 * sums).exp().mean() - 1).item()
    yield "mean squared geometric mean of a response's r, − 1", "responses", (
        (2 * means).exp().mean() - 1).item()
    yield "mean exp of a response's mean of log π_behaviour − log π_old", "responses", (
        (-means).exp().mean()).item()
    yield "mean |mean over a response of log r|", "responses", means.abs().mean().item()
    tokens = torch.cat([log_r(r)[r["response_mask"] > 0] for r in rows])
    for what, w in (("weights after truncation", tokens.exp().clamp(max=1.2)),
                    ("weights", tokens.exp())):
        yield f"(Σ w)²/(n Σ w²) of the {what}", "action tokens of the batch", (
            w.sum() ** 2 / (len(w) * (w**2).sum())).item()
    old, engine = (torch.cat([r[n][r["response_mask"] > 0] for r in rows]).exp()
                   for n in ("old_log_probs", "rollout_log_probs"))
    yield "largest |π_old − π_behaviour|", "", (old - engine).abs().max().item()
    yield "correlation of π_old and π_behaviour, as probabilities", "action tokens of the batch", (
        torch.corrcoef(torch.stack([old, engine]))[0, 1].item())
    yield "correlation of log π_old and log π_behaviour", "action tokens of the batch", (
        torch.corrcoef(torch.stack([old.log(), engine.log()]))[0, 1].item())
    scores = torch.stack([r["score"] for r in rows])
    masks = torch.stack([r["response_mask"].sum() for r in rows])
    lengths = torch.tensor([float(len(r["responses"])) for r in rows])
    yield "score", "responses", scores.mean().item()
    yield "score less the KL penalty", "responses", (scores - 0.01 * masks).mean().item()
    yield "action tokens of a response", "responses", masks.float().mean().item()
    yield "tokens of a response, with tool text", "responses", lengths.mean().item()
    yield "share as long as the widest of the batch", "responses", (
        (lengths == lengths.max()).float().mean().item())


def concat(lists: Any) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


def average(values: Any) -> float:
    values = list(values)
    return sum(values) / len(values)
