"""The state of a run in one object: the same answer for the CLI, the dashboard and scripts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, Self

from ..alarms.assess import Assessment, PhaseSpan
from ..alarms.attribution import Answer
from ..alarms.registry import STALLED
from ..alarms.rule import Alert, Severity, State
from ..runs import Run
from ..signals.evidence import Grade
from ..signals.phases import Phase
from ..storage.heartbeats import process_exited

if TYPE_CHECKING:
    from ..alarms.registry import Rule

CHECK_SCHEMA = 1

Verdict = Literal["healthy", "warning", "critical", "stalled", "insufficient"]
Life = Literal["live", "finished", "failed", "stopped", "stalled"]

HEARTBEAT_LOST = 30.0  # seconds without a heartbeat before its process counts as lost
# A run counts as stalled after both limits without a step: in seconds, and in usual steps.
ROW_LOST = 120.0
ROW_LOST_STEPS = 10.0
# The limit in seconds before the first step of an attempt, and before a usual step is known.
START_LOST = 3600.0


@dataclass(frozen=True)
class Liveness:
    """Whether the run is still running, why not, and how old its last row is in seconds.

    `over`: no more rows come unless somebody resumes the run.
    """

    life: Life
    reason: str | None
    last_row_age_seconds: float | None
    over: bool = False


def liveness(run: Run, assessment: Assessment, now: float | None = None) -> Liveness:
    """Judge run.json, the heartbeats and the age of the last step."""
    now = time.time() if now is None else now
    times = [t for t in assessment.evidence.column("time")[-50:].tolist() if t == t]
    age = now - times[-1] if times else None
    status = run.info.get("status")
    if status in ("finished", "failed", "stopped"):
        return Liveness(status, run.info.get("reason"), age, over=True)
    beats = _beats_of_last_attempt(run)
    if not run.info and beats and all(beat.get("closed") for beat in beats.values()):
        reason = "its recorders finished normally; run.json, which says more, is lost"
        return Liveness("stopped", reason, age, over=True)
    for rank, beat in sorted(beats.items()):
        if process_exited(beat):
            vanished = f"the process of rank {rank} (pid {beat['pid']}) is gone"
            return Liveness("stalled", vanished, age, over=True)
    return Liveness(*_running(run, beats, now, times), age)


def _beats_of_last_attempt(run: Run) -> dict[int, dict[str, Any]]:
    """Heartbeats of the ranks of the last attempt; those of earlier attempts are ignored.

    Heartbeats of older versions have no attempt and are assigned by their time.
    """
    started, size = _started(run), int(run.info.get("world_size") or 1)
    attempt = (run.info.get("attempts") or [{}])[-1].get("attempt")

    def present(beat: dict[str, Any]) -> bool:
        own = beat.get("attempt")
        if isinstance(own, int) and isinstance(attempt, int):
            return own >= attempt
        return float(beat.get("time") or 0.0) >= started

    return {r: beat for r, beat in run.heartbeats().items() if r < size and present(beat)}


def _running(
    run: Run, beats: dict[int, dict[str, Any]], now: float, times: list[float]
) -> tuple[Life, str | None]:
    if not beats and now - _started(run) > HEARTBEAT_LOST:
        return "stalled", "no process has ever written a heartbeat"
    for rank, beat in sorted(beats.items()):
        silent = now - float(beat.get("time") or 0.0)
        if silent > HEARTBEAT_LOST:
            return "stalled", f"rank {rank} has written no heartbeat for {silent:.0f} s"
    since = now - max([*times[-1:], _started(run)])  # a resumed run starts over
    limit = START_LOST
    if len(times) > 2 and times[-1] >= _started(run):
        usual = median(b - a for a, b in pairwise(times))
        limit = max(ROW_LOST, ROW_LOST_STEPS * usual)
    if since > limit:
        return "stalled", f"the process is alive, but no step has ended for {since:.0f} s"
    return "live", None


def _started(run: Run) -> float:
    """When the last attempt began, Unix time; 0 where run.json does not say."""
    attempts = run.info.get("attempts") or [{}]
    return float(attempts[-1].get("started") or 0.0)


def verdict(assessment: Assessment, life: Liveness) -> Verdict:
    """As of the last row; collapse latches, and a dead run is `stalled` unless it is critical."""
    firing = {a.severity for a in assessment.alerts if a.state == "firing"}
    if "critical" in firing or assessment.phase == "collapse":
        return "critical"
    if life.life in ("stalled", "failed"):
        return "stalled"
    if "warning" in firing:
        return "warning"
    return "healthy" if assessment.enough else "insufficient"


@dataclass(frozen=True, kw_only=True)
class StalledAlert:
    """The alarm that comes from the clock rather than from the rows, in the form of an `Alert`.

    `step` is the last step of the run and `value` the age of its last row in seconds; both are None
    where there is none.
    """

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
    false_alarms: str = STALLED.false_alarms
    episodes: tuple[tuple[int | None, int | None], ...]


AnyAlert = Alert | StalledAlert


@dataclass(frozen=True)
class RunState:
    """What `check` says of a run, as of its last row.

    `alerts`: every alarm that ever fired, worst first; `pending`: alarms about to fire.
    `look_alikes` and `look_alike_evidence` are by cause. `life`, `over`, `reason` and
    `last_row_age_seconds` are those of `Liveness`; `damaged` is what could not be read, and
    `dropped` what the recorders had to leave out, by reason.
    """

    run: str
    id: str | None
    path: str
    verdict: Verdict
    evidence: Grade
    phase: Phase | None
    phases: tuple[PhaseSpan, ...]
    alerts: tuple[AnyAlert, ...]
    pending: tuple[AnyAlert, ...]
    look_alikes: dict[str, Answer]
    look_alike_evidence: dict[str, str]
    last_step: int | None
    life: Life
    over: bool
    reason: str | None
    last_row_age_seconds: float | None
    arl: float
    false_alarm_bound: float | None
    damaged: dict[str, str]
    dropped: dict[str, int]

    @property
    def firing(self) -> tuple[AnyAlert, ...]:
        """The alarms that fire now, worst first."""
        return tuple(a for a in self.alerts if a.state == "firing")

    def to_dict(self) -> dict[str, Any]:
        """The state as plain data, as `lldscope check --json` prints it."""
        return {"schema": CHECK_SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The state that `to_dict` made, after JSON too. Raises KeyError or TypeError."""
        fields = {name: value for name, value in plain.items() if name != "schema"}
        fields["phases"] = tuple(PhaseSpan(**span) for span in plain["phases"])
        for name in ("alerts", "pending"):
            fields[name] = tuple(map(_alert_from_dict, plain[name]))
        return cls(**fields)


def _alert_from_dict(plain: dict[str, Any]) -> AnyAlert:
    kind = StalledAlert if plain["rule"] == STALLED.id else Alert
    episodes = tuple((a, b) for a, b in plain["episodes"])
    return kind(**{**plain, "severity": Severity(plain["severity"]), "episodes": episodes})


def _stalled_alert(life: Liveness, last_step: int | None) -> StalledAlert:
    message = f"the run is {life.life}: {life.reason or 'no reason was recorded'}"
    age = life.last_row_age_seconds
    return StalledAlert(step=last_step, value=age, message=message, episodes=((last_step, None),))


def check(run: Run, arl: float | None = None, rules: Sequence[Rule] | None = None) -> RunState:
    """The state of a run; `rules` are those that raise alarms, by default the built-in ones."""
    assessment = run.assess(arl, rules)
    life = liveness(run, assessment)
    alerts: tuple[AnyAlert, ...] = tuple(assessment.alerts)
    if life.life in ("stalled", "failed"):
        alerts = (_stalled_alert(life, assessment.last_step), *alerts)
    findings = assessment.look_alikes()
    return RunState(
        run=run.name,
        id=run.info.get("id"),
        path=run.place,
        verdict=verdict(assessment, life),
        evidence=assessment.grade,
        phase=assessment.phase,
        phases=tuple(assessment.spans()),
        alerts=alerts,
        pending=tuple(assessment.pending),
        look_alikes={cause: finding.answer for cause, finding in findings.items()},
        look_alike_evidence={cause: finding.evidence for cause, finding in findings.items()},
        last_step=assessment.last_step,
        **vars(life),
        arl=assessment.arl,
        false_alarm_bound=_bound(run, assessment),
        damaged=run.damaged,
        dropped=_dropped(run),
    )


def _bound(run: Run, assessment: Assessment) -> float | None:
    """The probability of a false decay alarm in a run of the planned length, at most; of the steps
    so far where there is no plan. None where Δ is not tested."""
    if assessment.last_step is None or "delta" not in assessment.evidence.decay.basis:
        return None
    return min(1.0, full_length(run, assessment.last_step) / assessment.arl)


def full_length(run: Run, last_step: int) -> int:
    """The planned number of steps, or those so far where they are more or there is no plan."""
    return max(run.planned_steps or 0, last_step + 1)


def vanished(state: RunState, why: str) -> RunState:
    """The state of a run that can no longer be read, from the last state that was."""
    reason = f"the run cannot be read any more: {why}"
    life = Liveness("stalled", reason, state.last_row_age_seconds, over=True)
    others = [alert for alert in state.alerts if alert.rule != STALLED.id]
    return replace(
        state,
        verdict="critical" if state.verdict == "critical" else "stalled",
        alerts=(_stalled_alert(life, state.last_step), *others),
        **vars(life),
    )


def _dropped(run: Run) -> dict[str, int]:
    """What the recorders of all ranks had to drop, by reason."""
    total: Counter[str] = Counter()
    for beat in run.heartbeats().values():
        dropped = beat.get("dropped")
        if isinstance(dropped, dict):
            total.update({str(k): n for k, n in dropped.items() if isinstance(n, int)})
    return dict(total)
