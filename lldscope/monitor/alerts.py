"""Alarms of a run: those of its rules, and `stalled`, which depends on the clock."""

from __future__ import annotations

from dataclasses import dataclass

from ..diagnosis.registry import STALLED
from ..diagnosis.rule import Alert, Severity, State


@dataclass(frozen=True, kw_only=True)
class StalledAlert:
    """The alarm `stalled`, in the form of an `Alert`. `step` is the last step of the run and
    `value` the age of its last row in seconds; None if there is no row."""

    rule: str = STALLED.id
    severity: Severity = STALLED.severity
    state: State = "firing"
    step: int | None
    value: float | None
    threshold: float | None = None
    message: str
    meaning: str = STALLED.meaning
    evidence: str = STALLED.evidence
    advice: str = STALLED.advice
    cause: str = STALLED.cause
    action: str = STALLED.action
    false_alarms: str = STALLED.false_alarms
    episodes: tuple[tuple[int | None, int | None], ...]

    @property
    def first_step(self) -> int | None:
        return self.step

    start = first_step

    @property
    def since(self) -> str:
        return "" if self.step is None else f"after step {self.step}"


AnyAlert = Alert | StalledAlert
