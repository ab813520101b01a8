"""The state of a run in one dictionary: the same answer for the CLI, the dashboard and scripts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from ..alarms.assess import Assessment
from ..alarms.registry import STALLED
from ..runs import Run
from ..storage.heartbeats import process_exited

if TYPE_CHECKING:
    from ..alarms.registry import Rule

CHECK_SCHEMA = 1

Verdict = Literal["healthy", "warning", "critical", "stalled", "insufficient"]
Life = Literal["live", "finished", "failed", "stopped", "stalled"]

HEARTBEAT_LOST = 30.0  # seconds without a heartbeat before its process counts as lost
ROW_LOST = 120.0  # seconds without a step, at least …
ROW_LOST_STEPS = 10.0  # … and this many usual steps, before a run counts as stalled; while it is
START_LOST = 3600.0  # … not known how long a step takes, or a start has had none, these seconds


@dataclass(frozen=True)
class Liveness:
    """Whether the run still runs, why not, and how old its last row is in seconds.

    `over` means that no more rows come unless somebody resumes the run.
    """

    state: Life
    reason: str | None
    age: float | None
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
        lost = "its recorders ended in order; run.json, which says more, is lost"
        return Liveness("stopped", lost, age, over=True)
    for rank, beat in sorted(beats.items()):
        if process_exited(beat):
            vanished = f"the process of rank {rank} (pid {beat['pid']}) is gone"
            return Liveness("stalled", vanished, age, over=True)
    return Liveness(*_running(run, beats, now, times), age)


def _beats_of_last_attempt(run: Run) -> dict[int, dict[str, Any]]:
    """Heartbeats of the ranks the run has now; those of an earlier start say nothing.

    Runs of versions whose heartbeats do not say their attempt are judged by the clock.
    """
    started, size = _started(run), int(run.info.get("world_size") or 1)
    attempt = (run.info.get("attempts") or [{}])[-1].get("attempt")

    def present(beat: dict[str, Any]) -> bool:
        told = beat.get("attempt")
        if isinstance(told, int) and isinstance(attempt, int):
            return told >= attempt
        return float(beat.get("time") or 0.0) >= started

    return {r: beat for r, beat in run.heartbeats().items() if r < size and present(beat)}


def _running(
    run: Run, beats: dict[int, dict[str, Any]], now: float, times: list[float]
) -> tuple[Life, str | None]:
    if not beats and now - _started(run) > HEARTBEAT_LOST:
        return "stalled", "no process has ever given a sign of life"
    for rank, beat in sorted(beats.items()):
        silent = now - float(beat.get("time") or 0.0)
        if silent > HEARTBEAT_LOST:
            return "stalled", f"rank {rank} has given no sign of life for {silent:.0f} s"
    since = now - max([*times[-1:], _started(run)])  # a resumed run begins anew
    limit = START_LOST
    if len(times) > 2 and times[-1] >= _started(run):
        usual = median(b - a for a, b in pairwise(times))
        limit = max(ROW_LOST, ROW_LOST_STEPS * usual)
    if since > limit:
        return "stalled", f"the process lives, but no step has ended for {since:.0f} s"
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
    if life.state in ("stalled", "failed"):
        return "stalled"
    if "warning" in firing:
        return "warning"
    return "healthy" if assessment.enough else "insufficient"


def check(
    run: Run, arl: float | None = None, rules: Sequence[Rule] | None = None
) -> dict[str, Any]:
    """The state of a run as plain data; what `lldscope check --json` prints.

    `rules` are those that raise alarms; by default the built-in ones.
    """
    assessment = run.assess(arl, rules)
    life = liveness(run, assessment)
    alerts = [asdict(a) for a in assessment.alerts]
    causes = assessment.look_alikes()
    if life.state in ("stalled", "failed"):
        alerts.insert(0, _stalled(life, assessment.last_step))
    return {
        "schema": CHECK_SCHEMA,
        "run": run.name,
        "id": run.info.get("id"),
        "path": run.place,
        "verdict": verdict(assessment, life),
        "evidence": assessment.grade,
        "phase": assessment.phase,
        "phases": [asdict(s) for s in assessment.spans()],
        "alerts": alerts,
        "pending": [asdict(a) for a in assessment.pending],
        "look_alikes": {name: found.answer for name, found in causes.items()},
        "look_alike_evidence": {name: found.evidence for name, found in causes.items()},
        "last_step": assessment.last_step,
        "life": life.state,
        "over": life.over,
        "reason": life.reason,
        "last_row_age_seconds": life.age,
        "arl": assessment.arl,
        "damaged": run.damaged,
        "dropped": _dropped(run),
    }


def vanished(state: dict[str, Any], why: str) -> dict[str, Any]:
    """The state of a run that was there and is no more, from the last one that was seen."""
    reason = f"the run cannot be read any more: {why}"
    age = state["last_row_age_seconds"]
    life = Liveness("stalled", reason, age, over=True)
    others = [a for a in state["alerts"] if a["rule"] != "stalled"]
    return {
        **state,
        "verdict": "critical" if state["verdict"] == "critical" else "stalled",
        "alerts": [_stalled(life, state["last_step"]), *others],
        "life": life.state,
        "over": life.over,
        "reason": reason,
    }


def _dropped(run: Run) -> dict[str, int]:
    """What the recorders of all ranks had to drop, by reason."""
    total: Counter[str] = Counter()
    for beat in run.heartbeats().values():
        dropped = beat.get("dropped")
        if isinstance(dropped, dict):
            total.update({str(k): n for k, n in dropped.items() if isinstance(n, int)})
    return dict(total)


def _stalled(life: Liveness, last_step: int | None) -> dict[str, Any]:
    """The alarm that comes from the clock rather than from the rows."""
    return {
        "rule": STALLED.id,
        "severity": STALLED.severity,
        "state": "firing",
        "step": last_step,
        "value": life.age,
        "threshold": None,
        "message": f"the run is {life.state}: {life.reason or 'no reason was recorded'}",
        "meaning": STALLED.meaning,
        "evidence": STALLED.evidence,
        "advice": STALLED.advice,
        "false_alarms": STALLED.false_alarms,
        "episodes": [(last_step, None)],
    }
