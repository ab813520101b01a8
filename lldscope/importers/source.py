"""What passes between importers: means and rows of a log, the request, and what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_NOTES = 100
HEAD_BYTES = 1 << 16  # of a file, for `looks_like`
NO_NUMBER = "values that are not numbers (texts, tables, histograms)"


@dataclass(frozen=True)
class Scalars:
    """Means of one step that another program computed.

    values   by their names in the file; NaN and Inf as they came
    time     Unix time, if the file holds it
    attempt  which start of the run; `AttemptCounter` counts them where steps go back
    """

    step: int
    values: dict[str, float]
    time: float | None = None
    attempt: int = 1


@dataclass(frozen=True)
class Rows:
    """Rows of one step: columns by table, as `recording.columns.tables` returns them.

    They belong to the attempt that counts at their step: a trainer that resumes from a checkpoint
    overwrites its files.
    """

    step: int
    tables: Mapping[str, dict[str, Any]]


@dataclass(frozen=True)
class ImportRequest:
    """The options of an import.

    columns       our name → the name in the file: a signal's, `step`, or that of a rollout's part
    correct_from  a rollout with at least this reward counts as correct
    exact_match   judge rollouts by comparing their answers with the golden ones in the file
    run           which run of a store that holds several, by name or id
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    correct_from: float = 1.0
    exact_match: bool = False
    run: str | None = None


@dataclass
class Findings:
    """What an import skipped or could not map, counted, and notes to show at the end."""

    request: ImportRequest = ImportRequest()
    advance: Callable[[int], None] = lambda n: None  # gets the bytes read, for a progress bar
    skipped: Counter[str] = field(default_factory=Counter)  # reason → how many
    names: set[str] = field(default_factory=set)  # foreign names kept under their own name
    all_names: set[str] = field(default_factory=set)  # foreign names, mapped or not
    notes: dict[str, None] = field(default_factory=dict)  # in order, each once
    differences: dict[str, None] = field(default_factory=dict)  # from what lldscope would measure
    planned_steps: int | None = None  # where the log has the length of the run
    counted: str = "steps"  # what the log's steps are: "rows" where it does not tell them

    def skip(self, reason: str, n: int = 1) -> None:
        self.skipped[reason] += n

    def note(self, text: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes[text] = None


# The last part of names that rows of any kind carry: in one that comes late, they go back too.
_STAMPS = frozenset(("step", "_step", "global_step", "ckpt_step", "epoch", "time", "timestamp"))


class AttemptCounter:
    """Counts the attempts of a run in a log that is read in order: a metric whose step goes back
    begins a new one. Each metric is followed by itself, because an evaluation may be logged late,
    with the step it belongs to, and because some stores hold all steps of one metric before those
    of the next."""

    def __init__(self) -> None:
        self.attempt = 1
        self._highest = 0
        self._last: dict[str, int] = {}  # name → last step

    def of(self, step: int, names: Collection[str]) -> int:
        """The attempt of metrics of these names that were logged together at a step."""
        if step < self._highest and any(self._goes_back(name, step) for name in names):
            self.attempt += 1
            self._highest = 0
            self._last.clear()
        self._last.update(dict.fromkeys(names, step))
        self._highest = max(self._highest, step)
        return self.attempt

    def _goes_back(self, name: str, step: int) -> bool:
        return step < self._last.get(name, step) and name.rpartition("/")[2] not in _STAMPS
