"""Data exchanged between importers: means and rows of a log, the request, and the findings."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_NOTES = 100
MOST_OPEN = 200  # items that wait until it is known whether the run resumed
NO_NUMBER = "values that are not numbers (texts, tables, histograms)"


@dataclass(frozen=True)
class Scalars:
    """Means of one step that another program computed.

    values   by their names in the file; NaN and Inf as they came
    time     Unix time, if the file holds it
    attempt  which start of the run; `in_attempts` counts them where steps go back
    is_open  whether later items may still show that it belongs to another attempt
    origin   the file, where those of a format are read one by one
    """

    step: int
    values: dict[str, float]
    time: float | None = None
    attempt: int = 1
    is_open: bool = False
    origin: Path | None = None


@dataclass(frozen=True)
class Rows:
    """Rows of one step: columns by table, as returned by `recording.columns.tables`. They belong to
    the attempt that counts at their step, because a trainer that resumes from a checkpoint
    overwrites its files."""

    step: int
    tables: Mapping[str, dict[str, Any]]


@dataclass(frozen=True)
class ImportRequest:
    """The options of an import.

    columns       our name of a signal, of `step` or of a rollout's part → its name in the file
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
    """Skipped and unmapped content, counted, and notes to show at the end."""

    request: ImportRequest = ImportRequest()
    advance: Callable[[int], None] = lambda n: None  # gets the bytes read, for a progress bar
    skipped: Counter[str] = field(default_factory=Counter)  # reason → how many
    names: set[str] = field(default_factory=set)  # foreign names kept under their own name
    all_names: set[str] = field(default_factory=set)  # foreign names, mapped or not
    notes: dict[str, None] = field(default_factory=dict)  # in order, each once
    differences: dict[str, None] = field(default_factory=dict)  # from what lldscope would measure
    planned_steps: int | None = None  # where the log has the length of the run
    counted: str = "steps"  # the unit: "rows" if the log does not state its steps
    aggregation: str = ""  # of tokens' values, if the log declares one other than by token
    returns: int = 0  # how often the steps went back for one item and on from where they were

    def skip(self, reason: str, n: int = 1) -> None:
        self.skipped[reason] += n

    def note(self, text: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes[text] = None


# Last parts of names that rows of every kind carry: they do not tell a late row from a resume.
_STAMPS = frozenset(("step", "_step", "global_step", "ckpt_step", "epoch", "time", "timestamp"))


class _Course:
    """The steps of an attempt so far, by metric: an evaluation may be logged late, under the step
    it belongs to.

    A metric that goes back suspends judgement (`begin`). If it is then logged at another step that
    it already had, the run has resumed; if other metrics continue, it came late. A rare metric,
    such as a repeated evaluation, decides nothing alone: it must also pass the last step.
    """

    def __init__(self) -> None:
        self._firsts: list[int] = []  # the first step of each attempt
        self._begin_attempt()

    def _begin_attempt(self) -> None:
        self._highest, self._most = -1, 0  # step, and number of items with the same names
        self._last: dict[str, int] = {}  # name → its last step
        self._steps: dict[tuple[str, ...], array[int]] = {}  # of items with these names
        self._holding: dict[str, list[array[int]]] = defaultdict(list)  # name → some of `_steps`

    def goes_back(self, item: Scalars) -> bool:
        return item.step < self._highest and bool(self._back(item, item.step))

    def _back(self, item: Scalars, least: int) -> list[str]:
        """The names of an item that were logged at a later step before."""
        last = self._last
        names = [name for name in item.values if last.get(name, -1) > least]
        return [name for name in names if name.rpartition("/")[2] not in _STAMPS]

    def begin(self, item: Scalars) -> None:
        """An item whose step goes back."""
        self._suspect = item.step, self._repeats(self._back(item, item.step), item.step)
        self._redone: set[str] = set()

    def _repeats(self, names: Collection[str], step: int) -> bool:
        """Whether one of the names already had a value at a step."""
        for steps in (steps for name in names for steps in self._holding.get(name, ())):
            i = bisect_left(steps, step)
            if i < len(steps) and steps[i] == step:
                return True
        return False

    def is_resume(self, item: Scalars) -> bool | None:
        """Whether the next item shows that the run has resumed; None if undecided."""
        first, repeats = self._suspect
        back = self._back(item, item.step - 1)
        if item.step < first:
            return False if back else None
        if item.step > first and back:
            if repeats or self._repeats(back, item.step):
                self._redone.update(back)
            return True if any(map(self._is_frequent, self._redone)) else None
        names = [name for name in item.values if name in self._last]
        if item.step < self._highest or not names:
            return None
        return not any(map(self._is_frequent, names)) and not self._redone.isdisjoint(names)

    def _is_frequent(self, name: str) -> bool:
        """Whether a metric was logged nearly as often as any other."""
        return 5 * sum(map(len, self._holding[name])) >= 4 * self._most

    def resume(self, item: Scalars) -> int:
        """The attempt that an item begins."""
        self._begin_attempt()
        self._firsts.append(item.step)
        return self.go_on(item)

    def go_on(self, item: Scalars) -> int:
        """The attempt of the next item."""
        if not self._firsts:
            self._firsts.append(item.step)
        self._last.update(dict.fromkeys(item.values, item.step))
        self._highest = max(self._highest, item.step)
        names = tuple(item.values)
        if (steps := self._steps.get(names)) is None:
            steps = self._steps[names] = array("q")
            for name in names:
                self._holding[name].append(steps)
        steps.append(item.step)
        self._most = max(self._most, len(steps))
        return len(self._firsts)

    def late(self, item: Scalars) -> int:
        """The attempt of a late item: the last one that began at or before its step."""
        attempts = [a for a, first in enumerate(self._firsts, 1) if first <= item.step]
        return attempts[-1] if attempts else 1


def in_attempts(
    items: Iterable[Scalars], findings: Findings, origin: Path | None = None
) -> Iterator[Scalars]:
    """The items of a log, in order, with their attempts. A step smaller than the previous one is a
    late value, or the first after a resume if the log continues from there."""
    course, at_end = _Course(), False
    waiting: list[Scalars] = []  # from an item that went back, until it is classified

    def process(item: Scalars) -> Iterator[Scalars]:
        if not waiting and not course.goes_back(item):
            yield place(item, course.go_on(item))
            return
        waiting.append(item)
        if len(waiting) == 1:
            course.begin(item)
            return
        has_resumed = course.is_resume(item)
        if has_resumed is not None:
            findings.returns += not has_resumed
            yield from settle(has_resumed)
        elif len(waiting) > MOST_OPEN:  # they came late, all of them
            for late in waiting:
                go_on = course.late if course.goes_back(late) else course.go_on
                yield place(late, go_on(late))
            waiting.clear()

    def settle(has_resumed: bool) -> Iterator[Scalars]:
        first, *rest = waiting
        waiting.clear()
        yield place(first, course.resume(first) if has_resumed else course.late(first))
        for item in rest:
            yield from process(item)

    def place(item: Scalars, attempt: int) -> Scalars:
        if attempt == 1 and not at_end and origin is None:
            return item
        return Scalars(item.step, item.values, item.time, attempt, at_end, origin)

    for item in items:
        yield from process(item)
    at_end = True
    while waiting:
        yield from settle(False)
