"""From the signals of a run to its phases, alarms and look-alikes, block by block."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from .account import Account
from .alarms import evaluate_rules
from .conditions import least_rows
from .decay_test import RUN_RATE
from .detectors import Columns
from .evidence import (
    Behind,
    Cadence,
    Evidence,
    Grade,
    Key,
    Log,
    Memory,
    Restarts,
    gather,
    observed_in,
    steps_of,
)
from .look_alikes import Finding, bases, look_alikes
from .outcome import Rise, outcome, rise, trend
from .phases import Phase, PhaseSpan, spans
from .registry import RULES
from .rule import Alert, Rule
from .rules.numerics import without_effect
from .rules.reward import unpaid

DEFAULT_ARL = 2000.0  # steps between false decay alarms, at least, on average
BLOCK = 2048  # rows that are judged at a time
KEEP = 64  # rows between two kept states of the judge, to which it returns if rows are replaced
# Signals that decide which signals are judged: after the first value of one, all is judged anew.
DECISIVE = ("reward", "success", "valid_searches", "tool_calls")


def default_arl(planned_steps: int | None) -> float:
    """The average run length A = L / RUN_RATE: a run of L steps has a false alarm with probability
    at most L / A. DEFAULT_ARL if L is unknown (docs/research/decay-alarm.md)."""
    return planned_steps / RUN_RATE if planned_steps else DEFAULT_ARL


@dataclass(frozen=True)
class Course:
    """The course of the outcome: the `share` of its best that is left, whether it has fallen or
    risen, and its `trend` in a word; components that were never paid (`unpaid`); and whether
    updates have no effect."""

    share: float
    has_fallen: bool
    rise: Rise | None
    trend: str
    unpaid: Sequence[str]
    is_without_effect: bool

    @classmethod
    def of(cls, e: Evidence) -> Course:
        shares, fallen = outcome(e).share, outcome(e).fallen
        return cls(
            float(shares[-1]) if len(shares) else np.nan, bool(fallen[-1:].any()), rise(e),
            trend(e), unpaid(e), without_effect(e),
        )


UNKNOWN = Course(np.nan, False, None, "", (), False)


@dataclass(frozen=True)
class Assessment:
    """Phases and alarms of a run as of its last row. `alerts` are all alarms that ever fired;
    `pending` are alarms whose condition has not held long enough yet. `last` is the evidence of the
    last rows."""

    arl: float
    last: Evidence
    course: Course
    timeline: Sequence[tuple[PhaseSpan, bool]]
    alerts: list[Alert]
    pending: list[Alert]
    findings: Mapping[str, Finding]
    bases: frozenset[str]  # of the decay test, so far
    fits: dict[Any, Any] = field(repr=False, compare=False)  # see `Log`

    @property
    def grade(self) -> Grade:
        return self.last.grade

    @property
    def phase(self) -> Phase | None:
        return self.timeline[-1][0].phase if self.timeline else "warmup"

    @property
    def last_step(self) -> int | None:
        return self.timeline[-1][0].end_step if self.timeline else None

    @property
    def rows(self) -> int:
        return self.last.start + len(self.last.step)

    @property
    def verdict(self) -> Literal["healthy", "warning", "critical", "insufficient"]:
        """The verdict as of the last row, from the rows alone. A collapse latches."""
        firing = {alert.severity for alert in self.alerts if alert.state == "firing"}
        is_critical = any(alert.severity == "critical" for alert in self.alerts)
        if "critical" in firing or (self.phase == "collapse" and is_critical):
            return "critical"
        if "warning" in firing:
            return "warning"
        enough = self.judged and self.last.measured[-1] >= least_rows(self.last)
        return "healthy" if enough else "insufficient"

    @property
    def judged(self) -> bool:
        """Whether a reward or a likelihood was ever measured. Without either, no run is healthy."""
        return not self.last.observed.isdisjoint(
            ("reward", "success", "correct_logp", "delta_correct")
        )

    def spans(self) -> list[PhaseSpan]:
        return [span for span, _ in self.timeline]

    def look_alikes(self) -> dict[str, Finding]:
        """The finding for LLD and for each look-alike."""
        return dict(self.findings)

    @cached_property
    def log(self) -> Log:
        """All rows as one block."""
        e = self.last
        return Log(
            signals=e.signals, start=0, step=steps_of(e.signals), observed=e.observed,
            restarts=e.restarts, cadence=e.cadence, fits=self.fits,
        )

    @cached_property
    def account(self) -> Account:
        """The account of all rows, in hindsight."""
        causes = {name for name, finding in self.findings.items() if finding.answer == "supported"}
        return Account.of(self.log, self.alerts, self.timeline, causes)

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence of all rows. It is slow; use `last` where the last rows are enough."""
        e = self.last
        if not e.start:  # the last block is the only one
            return replace(e, memory={}, cache=dict(e.cache))
        return gather(e.signals, e.arl, e.restarts, e.planned_steps, e.observed)


@dataclass
class _State:
    """The state after the first `rows` of a run."""

    rows: int = 0
    observed: frozenset[str] = frozenset()
    memory: Memory = field(default_factory=dict)

    def copy(self) -> _State:
        memory = {key: deepcopy(tape) for key, tape in self.memory.items()}
        return _State(self.rows, self.observed, memory)

    def observed_with(self, signals: Columns, stop: int) -> frozenset[str]:
        """The signals observed up to a later row."""
        return self.observed | observed_in(signals, self.rows, stop, self.observed)


class Judge:
    """Assesses a growing run; the cost of each look depends on the new rows only."""

    def __init__(self, arl: float = DEFAULT_ARL, rules: Sequence[Rule] = RULES) -> None:
        self._arl, self._rules = arl, tuple(rules)
        self._asked: dict[Key, None] = {}  # computations that are made for every block
        self._basis: tuple[object, ...] = ()
        self._restarts: Restarts = {}
        self._state = _State()
        self._states: deque[_State] = deque(maxlen=2)
        self._assessment: Assessment | None = None
        self._fits: dict[Any, Any] = {}

    def look(
        self,
        signals: Columns,
        restarts: Restarts | None = None,
        planned_steps: int | None = None,
        replaced: int | None = None,
    ) -> Assessment:
        """Assess the run as of its last row. `signals` are all rows; rows from `replaced` on have
        changed since the last look."""
        restarts, n = dict(restarts or {}), len(signals["step"])
        if replaced is not None and replaced < self._state.rows:
            self._go_back(replaced)
        if changed := restarts.items() ^ self._restarts.items():
            steps = steps_of(signals, 0, self._state.rows)
            if (row := int(np.searchsorted(steps, min(changed)[0]))) < len(steps):
                self._go_back(row)
        observed = self._state.observed_with(signals, n)
        cadence = Cadence.of(steps_of(signals, 0, 3))
        basis = (planned_steps, cadence, observed.intersection(DECISIVE), {*signals})
        if basis != self._basis:
            self._go_back(0)
        self._basis, self._restarts = basis, restarts
        while self._assessment is None or self._state.rows < n:
            start = self._state.rows
            if start and start - max((s.rows for s in self._states), default=0) >= KEEP:
                self._states.append(self._state.copy())
            rows = slice(start, min(start + BLOCK, n))
            try:
                self._judge(gather(
                    signals, self._arl, restarts, planned_steps, observed, rows, self._state.memory
                ))
            except Behind as behind:
                self._asked[behind.key] = None
                self._go_back(0)
            except BaseException:
                self._go_back(0)
                raise
            else:
                self._state.observed = (
                    observed if rows.stop == n else self._state.observed_with(signals, rows.stop)
                )
                self._state.rows = rows.stop
        return self._assessment

    def _go_back(self, row: int) -> None:
        """Forget this row and all later ones."""
        while self._states and self._states[-1].rows > row:
            self._states.pop()
        self._state = self._states[-1].copy() if self._states else _State()
        self._assessment, self._fits = None, {}

    def _judge(self, e: Evidence) -> None:
        for key in (*self._asked, *e.memory):
            function, arguments, more = key
            if function is not gather:
                function(e, *arguments, **dict(more))
        alerts, pending = evaluate_rules(e, self._rules)
        self._assessment = Assessment(
            self._arl, e, Course.of(e), tuple(spans(e)), alerts, pending, look_alikes(e), bases(e),
            self._fits,
        )


def assess(
    signals: Columns,
    arl: float = DEFAULT_ARL,
    rules: Sequence[Rule] = RULES,
    restarts: Restarts | None = None,
    planned_steps: int | None = None,
) -> Assessment:
    """Assess the columns of `schema.SIGNALS`; causal in the rows.

    `arl` is the minimum average number of steps between false alarms of the decay test. `rules` are
    the rules that raise alarms; phases and look-alikes do not depend on them. `restarts` are the
    steps at which baselines are reset (`evidence.restarts_of`). `planned_steps` is the planned
    length of the run, if known.
    """
    return Judge(arl, rules).look(signals, restarts, planned_steps)
