"""What was tried with a run, as tables for people: `blame`'s answer, `rescue`'s forks, attempts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runs import Run
from ..storage import json_files

BLAME, RESCUE = "blame", "rescue"
"""Folders of a run: `step-STEP.json` with the answer of each, and the forks of each rescue."""


@dataclass(frozen=True)
class Experiment:
    """`sentence` is the answer. All is text that may come from a foreign file: escape it."""

    title: str
    sentence: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def has_experiments(path: Path, info: Mapping[str, Any]) -> bool:
    """Whether anything was tried with the run in a folder, without opening it."""
    folders = any((path / name).is_dir() for name in (BLAME, RESCUE))
    return folders or len(info.get("attempts") or []) > 1


def experiments(run: Run) -> list[Experiment]:
    """What was tried with a run, the most telling first; what cannot be read is left out."""
    if not has_experiments(run.path, run.info):
        return []
    answers = (blame_answer(run), rescue_answer(run), attempts(run))
    return [answer for answer in answers if answer is not None]


def blame_answer(run: Run) -> Experiment | None:
    """The last answer of `lldscope blame`."""
    answer = _newest(run.path / BLAME, lambda plain: (
        str(plain["sentence"])[:2000], int(plain["step"]), int(plain["draws"]),
        [(str(v["name"])[:80], _number(v["measures"]["delta_correct"]), _interval(v["delta"]),
          _interval(v["change"])) for v in plain["variants"][:100]],
    ))
    if answer is None:
        return None
    sentence, step, draws, rows = answer
    head = ("update", "Δ, this batch", f"Δ, {draws} new batches [95 %]", "difference [95 %]")
    title = f"What the update of step {step} did, run again with one thing changed"
    return Experiment(title, sentence, head, rows)


def rescue_answer(run: Run) -> Experiment | None:
    """The last answer of `lldscope rescue`."""
    answer = _newest(run.path / RESCUE, lambda plain: (
        str(plain["sentence"])[:2000], int(plain["checkpoint"]),
        [(str(a["arm"])[:80], [float(em) for em in a["em"]][:100], a["delta"], a["ended"])
         for a in plain["arms"][:20]],
    ))
    if answer is None:
        return None
    sentence, checkpoint, arms = answer
    rows = [
        (arm, ", ".join(f"{em:.3f}" for em in ems), _number(delta),
         "" if ended is None else f"step {ended - 1}")
        for arm, ems, delta, ended in arms
    ]
    head = ("fork", "held-out exact match, round by round", "mean Δ, nats", "ended after")
    title = f"Forks from the checkpoint before step {checkpoint}"
    return Experiment(title, sentence, head, rows)


def _newest(folder: Path, parse: Callable[[Any], Any]) -> Any:
    """What `parse` makes of the newest answer in a folder; None where it cannot be read."""
    try:
        file = max(folder.glob("step-*.json"), key=lambda path: path.stat().st_mtime)
        return parse(json_files.parse(json_files.read_bytes(file, folder.parent)))
    except (OSError, ValueError, TypeError, LookupError):
        return None


def attempts(run: Run) -> Experiment | None:
    """The attempts of a run that was resumed: where each began, what it changed, and up to which
    step it counts."""
    spans = run.rows("SELECT attempt, min(step), max(step) FROM all_steps GROUP BY attempt"
                     " ORDER BY attempt").rows
    if len(spans) < 2:
        return None
    changes = {e.get("attempt"): e["changed"] for e in run.events()
               if e.get("kind") == "resume" and isinstance(e.get("changed"), dict)}
    rows = []
    for i, (attempt, first, last) in enumerate(spans):
        counts = min([last, *(start - 1 for _, start, _ in spans[i + 1 :])])
        until = f"to {counts}" if counts >= first else "superseded"
        changed = ", ".join(f"{name}={value}" for name, value in changes.get(attempt, {}).items())
        rows.append((str(attempt), f"{first} to {last}", until, changed))
    head = ("attempt", "steps", "counts", "changed")
    sentence = f"{len(spans)} attempts; where steps overlap, the last counts."
    return Experiment("Attempts", sentence, head, rows)


def _number(value: Any) -> str:
    return f"{value:+.2f}" if isinstance(value, int | float) else "–"


def _interval(values: tuple[float, float, float] | None) -> str:
    return "–" if values is None else "{:+.2f} [{:+.2f}, {:+.2f}]".format(*values)
