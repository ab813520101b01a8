"""Whether a run is still running: from run.json, the heartbeats and the age of the last step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from ..core.safe_text import in_one_line
from ..diagnosis.assess import Assessment
from ..diagnosis.detectors import floats
from ..runs import Run
from ..storage.heartbeats import HEARTBEAT_LOST, Beats, process_exited

Life = Literal["live", "finished", "failed", "stopped", "stalled"]

# A run counts as stalled if no step has ended for longer than both: seconds, and usual steps.
ROW_LOST = 120.0
ROW_LOST_STEPS = 10.0
# The limit in seconds until an attempt has its first step and a usual step is known.
START_LOST = 3600.0


@dataclass(frozen=True)
class Liveness:
    """Whether the run is still running, the reason if not, and the age of its last row in seconds.
    `over`: no more rows come unless somebody resumes the run."""

    life: Life
    reason: str | None
    last_row_age_seconds: float | None
    over: bool = False

    @property
    def why(self) -> str:
        """The reason in one line."""
        return in_one_line(self.reason or "") or "no reason was recorded"


def liveness(run: Run, assessment: Assessment, beats: Beats, now: float | None = None) -> Liveness:
    """Judge run.json, the heartbeats of all ranks and the age of the last step."""
    now = time.time() if now is None else now
    last = floats(assessment.last.signals, "time", max(assessment.rows - 50, 0))
    times = [t for t in last.tolist() if t == t]
    age = now - times[-1] if times else None
    status = run.info.get("status")
    if status in ("finished", "failed", "stopped"):
        return Liveness(status, run.info.get("reason"), age, over=True)
    beats = _of_last_attempt(run, beats)
    if not run.info and beats and all(beat.get("closed") for beat in beats.values()):
        reason = "its recorders finished normally; run.json, which says more, is lost"
        return Liveness("stopped", reason, age, over=True)
    for rank, beat in sorted(beats.items()):
        if process_exited(beat):
            vanished = f"the process of rank {rank} (pid {beat['pid']}) is gone"
            return Liveness("stalled", vanished, age, over=True)
    return Liveness(*_running(run, beats, now, times), age)


def _of_last_attempt(run: Run, beats: Beats) -> Beats:
    """Heartbeats of the ranks of the last attempt; those of earlier attempts are ignored."""
    size = int(run.info.get("world_size") or 1)
    attempt = (run.info.get("attempts") or [{}])[-1].get("attempt")

    def is_earlier(beat: Mapping[str, Any]) -> bool:
        number = beat.get("attempt")
        return isinstance(number, int) and isinstance(attempt, int) and number < attempt

    return {r: b for r, b in beats.items() if r < size and not is_earlier(b)}


def _running(
    run: Run, beats: Beats, now: float, times: list[float]
) -> tuple[Life, str | None]:
    if not beats and now - _start_time(run) > HEARTBEAT_LOST:
        return "stalled", "no process has ever written a heartbeat"
    for rank, beat in sorted(beats.items()):
        silent = now - float(beat.get("time") or 0.0)
        if silent > HEARTBEAT_LOST:
            return "stalled", f"rank {rank} has written no heartbeat for {silent:.0f} s"
    since = now - max([*times[-1:], _start_time(run)])  # a resumed run starts over
    limit = START_LOST
    if len(times) > 2 and times[-1] >= _start_time(run):
        usual = median(b - a for a, b in pairwise(times))
        limit = max(ROW_LOST, ROW_LOST_STEPS * usual)
    if since > limit:
        return "stalled", f"the process is alive, but no step has ended for {since:.0f} s"
    return "live", None


def _start_time(run: Run) -> float:
    """The Unix time at which the last attempt began; 0 if run.json does not say."""
    attempts = run.info.get("attempts") or [{}]
    return float(attempts[-1].get("started") or 0.0)
