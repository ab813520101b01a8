"""One call that turns the signals of a run into phases, alarms and look-alikes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import pandas as pd

from .evidence import Evidence, Grade, Restarts, gather
from .phases import LEAST, Phase, classify
from .rules import LOOK_ALIKES, RULES, Alert, Rule, evaluate

DEFAULT_ARL = 2000.0  # steps between false decay alarms, at least, on average

LookAlike = Literal["supported", "ruled_out", "not_observable"]


@dataclass(frozen=True)
class PhaseSpan:
    """A phase from its first to its last step, both included."""

    phase: Phase | None
    start_step: int
    end_step: int


@dataclass(frozen=True)
class Assessment:
    """What the rows of a run say, as of the last of them."""

    arl: float
    evidence: Evidence
    phases: list[Phase | None]
    alerts: list[Alert]

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
    def enough(self) -> bool:
        """Whether there are enough steps to say anything."""
        return len(self.evidence.step) > 0 and bool(self.evidence.measured[-1] >= LEAST)

    def spans(self) -> list[PhaseSpan]:
        """Consecutive steps of the same phase."""
        spans: list[PhaseSpan] = []
        for step, phase in zip(self.evidence.step.tolist(), self.phases, strict=True):
            if spans and spans[-1].phase == phase:
                spans[-1] = PhaseSpan(phase, spans[-1].start_step, step)
            else:
                spans.append(PhaseSpan(phase, step, step))
        return spans

    def phase_spans(self) -> pd.DataFrame:
        return pd.DataFrame(
            [asdict(s) for s in self.spans()], columns=["phase", "start_step", "end_step"]
        )

    def alert_frame(self) -> pd.DataFrame:
        return pd.DataFrame(
            [asdict(a) for a in self.alerts], columns=list(Alert.__dataclass_fields__)
        )

    def look_alikes(self) -> dict[str, LookAlike]:
        """For LLD and each cause that looks like it on the reward curve, what this log says."""
        return {name: self._look_alike(rule) for name, rule in LOOK_ALIKES.items()}

    def _look_alike(self, rule_id: str | None) -> LookAlike:
        rule = next((r for r in RULES if r.id == rule_id), None)
        if rule is None or not any(self._measured(name) for name in rule.needs):
            return "not_observable"
        fired = any(a.rule == rule_id for a in self.alerts)
        return "supported" if fired else "ruled_out"

    def _measured(self, name: str) -> bool:
        return bool(np.any(~np.isnan(self.evidence.column(name))))


def assess(
    signals: pd.DataFrame,
    arl: float = DEFAULT_ARL,
    rules: Sequence[Rule] = RULES,
    restarts: Restarts | None = None,
) -> Assessment:
    """Assess a frame with the columns of `schema.SIGNALS`; causal in its rows.

    `arl` is the average number of steps between false alarms of the decay test, at least. `rules`
    are those that raise alarms; the phases and look-alikes do not depend on them. `restarts` are
    the steps at which the run is declared to have changed (`evidence.restarts_of`).
    """
    evidence = gather(signals, arl, restarts)
    phases = classify(evidence)
    return Assessment(arl, evidence, phases, evaluate(evidence, phases, rules))
