"""From the signals of a run to its phases, alarms and look-alikes, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .alarms import evaluate_rules
from .causes import explained_elsewhere
from .conditions import least_rows
from .decay_test import RUN_RATE
from .detectors import Columns, floats
from .evidence import Evidence, Flags, Grade, Restarts, gather
from .look_alikes import Finding, look_alikes
from .phases import Phase, classify
from .registry import RULES
from .rule import Alert, Rule

DEFAULT_ARL = 2000.0  # steps between false decay alarms, at least, on average


def default_arl(planned_steps: int | None) -> float:
    """The average run length A at which a run of L steps has a false alarm with probability at most
    L / A = RUN_RATE; DEFAULT_ARL where L is not known (docs/research/decay-alarm.md)."""
    return planned_steps / RUN_RATE if planned_steps else DEFAULT_ARL


@dataclass(frozen=True)
class PhaseSpan:
    """A phase from its first to its last step, both included."""

    phase: Phase | None
    start_step: int
    end_step: int


@dataclass(frozen=True)
class Assessment:
    """Phases and alarms of a run, as of its last row.

    `explained` marks the rows on which a fall of the likelihood is attributed to a cause other than
    LLD. `alerts` are all alarms that ever fired, `pending` those whose condition holds, but not yet
    for long enough.
    """

    arl: float
    evidence: Evidence
    explained: Flags
    phases: list[Phase | None]
    alerts: list[Alert]
    pending: list[Alert]

    @property
    def grade(self) -> Grade:
        return self.evidence.grade

    @property
    def phase(self) -> Phase | None:
        return self.phases[-1] if self.phases else "warmup"

    @property
    def last_step(self) -> int | None:
        return int(self.evidence.step[-1]) if len(self.evidence.step) else None

    @property
    def verdict(self) -> Literal["healthy", "warning", "critical", "insufficient"]:
        """As of the last row, of the rows alone; collapse latches."""
        firing = {alert.severity for alert in self.alerts if alert.state == "firing"}
        is_critical = any(alert.severity == "critical" for alert in self.alerts)
        if "critical" in firing or (self.phase == "collapse" and is_critical):
            return "critical"
        if "warning" in firing:
            return "warning"
        e = self.evidence
        enough = self.judged and e.measured[-1] >= least_rows(e)
        return "healthy" if enough else "insufficient"

    @property
    def judged(self) -> bool:
        """Whether a reward or a likelihood was ever measured: without either, no run is healthy."""
        names = ("reward", "success", "correct_logp", "delta_correct")
        return any(np.isfinite(floats(self.evidence.signals, name)).any() for name in names)

    def spans(self) -> list[PhaseSpan]:
        """Consecutive steps of the same phase."""
        spans: list[PhaseSpan] = []
        for step, phase in zip(self.evidence.step.tolist(), self.phases, strict=True):
            if spans and spans[-1].phase == phase:
                spans[-1] = PhaseSpan(phase, spans[-1].start_step, step)
            else:
                spans.append(PhaseSpan(phase, step, step))
        return spans

    def look_alikes(self) -> dict[str, Finding]:
        """For LLD and each cause that looks like it on the reward curve, what this log supports."""
        return look_alikes(self.evidence, self.phases, self.explained)


def assess(
    signals: Columns,
    arl: float = DEFAULT_ARL,
    rules: Sequence[Rule] = RULES,
    restarts: Restarts | None = None,
    planned_steps: int | None = None,
) -> Assessment:
    """Assess the columns of `schema.SIGNALS`; causal in their rows.

    `arl` is the average number of steps between false alarms of the decay test, at least. `rules`
    are those that raise alarms; the phases and look-alikes do not depend on them. `restarts` are
    the steps at which baselines are reset (`evidence.restarts_of`). `planned_steps` is the length
    that the run is to have, where that is known.
    """
    evidence = gather(signals, arl, restarts, planned_steps)
    explained = explained_elsewhere(evidence)
    phases = classify(evidence, explained)
    alerts, pending = evaluate_rules(evidence, phases, rules, explained)
    return Assessment(arl, evidence, explained, phases, alerts, pending)
