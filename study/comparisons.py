"""Arms against each other, seed by seed, as Markdown; and in words what that shows."""

from __future__ import annotations

from lldscope.evaluation.scoring import wilson

from .results import Results
from .stats import Paired, holm, paired
from .tables import GRPO, LLDS, listed, spread, table

COMPARED = (
    (LLDS, GRPO), ("nll", GRPO), ("half-lr", GRPO), ("positive-only", GRPO), ("grpo-kl", GRPO),
    ("llds-token", GRPO), ("llds-response", GRPO), ("llds-ma", GRPO), (LLDS, "nll"),
    (LLDS, "half-lr"), (LLDS, "positive-only"), (LLDS, "grpo-kl"), (LLDS, "llds-token"),
    (LLDS, "llds-response"), (LLDS, "llds-ma"), ("gspo-llds", "gspo"),
)


def compare(results: Results, first: str, second: str, what: str = "final") -> Paired | None:
    """A number of two arms' runs (a field of `Result`) on the seeds that both have; None with
    fewer than two."""
    a, b = results.by_seed(first), results.by_seed(second)
    both = sorted(a.keys() & b.keys())
    pairs = [(getattr(a[s], what), getattr(b[s], what)) for s in both]
    differences = [x - y for x, y in pairs if x is not None and y is not None]
    return paired(differences) if len(differences) > 1 else None


def comparisons(results: Results) -> str:
    """Difference of the final reward by seed, in words what that shows, and of held-out facts."""
    head = (
        "first − second", "seeds", "final reward", "95 % interval", "first higher", "p", "Holm",
        "what can be said of the reward", "greedy EM at the end", "first higher",
    )
    tests = {pair: compare(results, *pair) for pair in COMPARED}
    there = {pair: c for pair, c in tests.items() if c is not None}
    corrected = holm([min(1.0, 2 * c.p) for c in there.values()])
    rows = [
        _cells(results, *pair, c, p) for (pair, c), p in zip(there.items(), corrected, strict=True)
    ]
    return table(head, rows)


def _cells(results: Results, first: str, second: str, c: Paired, corrected: float) -> list[str]:
    em = compare(results, first, second, "em_end")
    words = {
        1: f"{first} ends higher",
        0: "no difference can be claimed",
        -1: f"{second} ends higher",
    }
    return [
        f"{first} − {second}",
        str(c.n),
        f"{c.mean:+.3f}",
        f"{c.low:+.3f} to {c.high:+.3f}",
        f"{c.above} of {c.n}",
        f"{c.p:.3f}",
        f"{corrected:.2f}",
        words[c.verdict],
        "–" if em is None else f"{em.mean:+.3f} ({em.low:+.3f} to {em.high:+.3f})",
        "–" if em is None else f"{em.above} of {em.n}",
    ]


def verdict(results: Results) -> str:
    """Whether LLDS beats plain GRPO and each control, from the numbers."""
    arms: dict[int, list[str]] = {1: [], 0: [], -1: []}
    absent = []
    for _, second in (pair for pair in COMPARED if pair[0] == LLDS):
        c = compare(results, LLDS, second)
        if c is None:
            absent.append(f"`{second}`")
        else:
            arms[c.verdict].append(f"`{second}` ({c.mean:+.3f}, {c.n} seeds)")
    words = [_falls(results, arm) for arm in (GRPO, LLDS) if results.of(arm)]
    if arms[1]:
        words.append(f"LLDS with the action gate ends with a higher reward than {listed(arms[1])}.")
    if arms[0]:
        words.append(f"LLDS does not beat {listed(arms[0])}: no difference can be claimed.")
    if arms[-1]:
        words.append(f"LLDS does not beat {listed(arms[-1])}: there it ends lower.")
    if absent:
        words.append(f"Nothing can be said yet against {listed(absent)}.")
    return " ".join(words)


def _falls(results: Results, arm: str) -> str:
    runs = results.of(arm)
    dead = [r for r in runs if r.collapsed]
    fell = [r for r in runs if r.fall is not None]
    low, high = wilson(len(dead), len(runs))
    text = (
        f"`{arm}`: the reward of {len(fell)} of {len(runs)} runs fell, and {len(dead)} collapsed "
        f"({100 * low:.0f}–{100 * high:.0f} %)"
    )
    warned = [r.lead for r in fell if r.lead is not None]
    if fell:
        text += f"; a decay alarm came before {len(warned)} of the falls"
        text += f", by {spread(warned)} steps" if warned else ""
    return text + "."
