"""Experiments with a run, as tables for people: the answer of `blame`, the forks of `rescue`, and
attempts. The answers are in `blame/step-STEP.json` and `rescue/step-STEP.json` of the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..runs import Run
from ..storage import json_files


@dataclass(frozen=True)
class Experiment:
    """`sentence` is the answer. All texts may come from a foreign file: escape them."""

    title: str
    sentence: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def experiments(run: Run) -> list[Experiment]:
    """The experiments with a run, the most informative first, without unreadable ones."""
    answers = (_newest(run, "blame", blame), _newest(run, "rescue", rescue), attempts(run))
    return [answer for answer in answers if answer is not None]


def _newest(run: Run, folder: str, read: Callable[[Any], Experiment]) -> Experiment | None:
    """The newest readable answer in a folder of a run; None if there is none."""
    try:
        file = max((run.path / folder).glob("step-*.json"), key=lambda path: path.stat().st_mtime)
        return read(json_files.parse(json_files.read_bytes(file, run.path)))
    except (OSError, ValueError, TypeError, LookupError):
        return None


def blame(answer: Any) -> Experiment:
    """The answer of `lldscope blame`."""
    rows = [
        (str(v["name"])[:80], _number(v["measures"]["delta_correct"]), _interval(v["delta"]),
         _interval(v["change"]))
        for v in answer["variants"][:100]
    ]
    new = f"Δ, {int(answer['draws'])} new batches [95 %]"
    head = ("update", "Δ, this batch", new, "difference [95 %]")
    title = f"What the update of step {int(answer['step'])} did, run again with one thing changed"
    return Experiment(title, str(answer["sentence"])[:2000], head, rows)


def rescue(answer: Any) -> Experiment:
    """The answer of `lldscope rescue`."""
    rows = [
        (str(a["arm"])[:80], ", ".join(f"{float(em):.3f}" for em in a["em"][:100]),
         _number(a["delta"]), "" if a["ended"] is None else f"step {a['ended'] - 1}")
        for a in answer["arms"][:20]
    ]
    head = ("fork", "held-out exact match, round by round", "mean Δ, nats", "ended after")
    title = f"Forks from the checkpoint before step {int(answer['checkpoint'])}"
    return Experiment(title, str(answer["sentence"])[:2000], head, rows)


def attempts(run: Run) -> Experiment | None:
    """The attempts of a resumed run: the first step of each, the settings that it changed, and the
    last step that counts."""
    spans = run.rows("SELECT attempt, min(step), max(step), (SELECT max(step) FROM steps s WHERE"
                     " s.attempt = a.attempt) FROM all_steps a GROUP BY attempt ORDER BY attempt"
                     ).rows
    if len(spans) < 2:
        return None
    changes = {e.get("attempt"): e["changed"] for e in run.events()
               if e.get("kind") == "resume" and isinstance(e.get("changed"), dict)}
    rows = []
    for attempt, first, last, counts in spans:
        until = "superseded" if counts is None else f"to {counts}"
        changed = ", ".join(f"{name}={value}" for name, value in changes.get(attempt, {}).items())
        rows.append((str(attempt), f"{first} to {last}", until, changed))
    head = ("attempt", "steps", "counts", "changed")
    sentence = f"{len(spans)} attempts; where steps overlap, the last counts."
    return Experiment("Attempts", sentence, head, rows)


def _number(value: Any) -> str:
    return f"{value:+.2f}" if isinstance(value, int | float) else "–"


def _interval(values: tuple[float, float, float] | None) -> str:
    return "–" if values is None else "{:+.2f} [{:+.2f}, {:+.2f}]".format(*values)
