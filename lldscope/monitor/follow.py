"""Follows a live run and reports what has changed, for `watch`, `demo` and `train`."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..core.errors import LldscopeError, RunNotFound
from ..diagnosis.registry import STALLED, Rule
from ..runs import Run, open_run
from ..storage.json_files import to_json
from .alerts import AnyAlert
from .health import CHECK_SCHEMA, RunState, check, vanished

log = logging.getLogger("lldscope")

GONE_SECONDS = 30.0  # how long a run may be unreadable before it counts as deleted


@dataclass(frozen=True)
class AlertEvent:
    """An alarm whose state has changed, and the state of the run at that `time` (Unix time).

    `started` and `ended` are the times of the first and the last step of its last episode; `ended`
    is None while the alarm fires. `link` is the address of the alarm in the dashboard, if known.
    """

    time: float
    state: RunState
    alert: AnyAlert
    started: float
    ended: float | None
    link: str | None = None

    @property
    def event_id(self) -> str:
        """An id that is the same for every delivery of the event, even by another `watch`. A run
        may stall twice after one step, so the id of a stall includes the age of the last row."""
        alert = self.alert
        key = [
            self.state.id or self.state.path, alert.rule, alert.state, alert.severity,
            alert.episodes[-1], self.started, self.ended,
            alert.value if alert.rule == STALLED.id else None,
        ]
        return hashlib.sha256(to_json(key).encode()).hexdigest()[:16]

    def alert_dict(self) -> dict[str, Any]:
        """The alarm and its times as plain data, as `alerts.jsonl` holds it."""
        return {**asdict(self.alert), "started": self.started, "ended": self.ended}

    def to_dict(self) -> dict[str, Any]:
        """The event as plain data: what `watch --json` prints and `--on-alert` reads."""
        names = ("run", "id", "path", "verdict", "phase", "last_step")
        return {
            "type": "alert",
            "event_id": self.event_id,
            "time": self.time,
            "schema": CHECK_SCHEMA,
            **{name: getattr(self.state, name) for name in names},
            "grade": self.state.evidence,
            "link": self.link,
            **self.alert_dict(),
        }


@dataclass(frozen=True)
class RunUpdate:
    """The state of the run and the alarms that have changed since the last update. In the first
    update every alarm has changed, even if it is resolved."""

    state: RunState
    events: tuple[AlertEvent, ...]
    first: bool = False


@dataclass
class Follower:
    """Reads a run repeatedly, in any state: missing, running, finished, dead.

    `waiting` says why there is no run yet. A run that can no longer be read keeps its last state
    for GONE_SECONDS; then it counts as stalled and over. `dashboard` is the URL of the dashboard,
    or of the run's page in it.
    """

    path: Path
    arl: float | None = None
    rules: Sequence[Rule] | None = None
    dashboard: str | None = None

    def __post_init__(self) -> None:
        self.run: Run | None = None
        self.waiting = ""
        self._id: object = None
        self._state: RunState | None = None
        self._unreadable_since: float | None = None

    def poll(self) -> RunUpdate | None:
        """The run now; None until there is a run at the path."""
        import duckdb  # here, because a node that only records lacks it

        try:
            state = self._read()
        except RunNotFound as error:
            self.waiting = str(error)
            if self._state is None:
                return None
            return self._unreadable("its directory is gone")
        except (LldscopeError, OSError, duckdb.Error) as error:
            if self._state is None:
                raise
            return self._unreadable(str(error).split("\n")[0])
        self._unreadable_since = None
        return self._observe(state)

    def _read(self) -> RunState:
        if self.run is None:
            self.run = open_run(self.path)
        else:
            self.run.refresh()
        return check(self.run, self.arl, self.rules)

    def _unreadable(self, why: str) -> RunUpdate:
        """The last state for a while: a network file system may lose a directory for a moment."""
        now = time.monotonic()
        self._unreadable_since = self._unreadable_since or now
        assert self._state is not None
        if now - self._unreadable_since < GONE_SECONDS:
            return RunUpdate(self._state, ())
        return self._observe(vanished(self._state, why))

    def _observe(self, state: RunState) -> RunUpdate:
        first = self._state is None
        changes = self._changes(state)
        self._state = state
        times = self._step_times() if changes else {}
        return RunUpdate(state, tuple(self._event(state, alert, times) for alert in changes), first)

    def _changes(self, state: RunState) -> list[AnyAlert]:
        now = {alert.rule: alert for alert in state.alerts}
        before = {alert.rule: alert for alert in self._state.alerts} if self._state else {}
        run_id = self.run.info.get("id") if self.run is not None else None
        another, self._id = run_id != self._id, run_id
        # If another run is at the path now, what fired before has ended and everything is new.
        endings = [
            _resolve(alert, state.last_step)
            for rule, alert in before.items()
            if alert.state == "firing" and (another or rule not in now)
        ]
        if another:
            before = {}
        return endings + [
            a for rule, a in now.items() if rule not in before or _stage(before[rule]) != _stage(a)
        ]

    def _event(
        self, state: RunState, alert: AnyAlert, times: dict[int | None, float]
    ) -> AlertEvent:
        start, end = alert.episodes[-1]
        now = time.time()
        end_time = None if alert.state == "firing" else times.get(end, now)
        link = self.dashboard and link_to(self.dashboard, self.path.name, alert.rule)
        return AlertEvent(now, state, alert, times.get(start, now), end_time, link or None)

    def _step_times(self) -> dict[int | None, float]:
        if self.run is None:
            return {}
        rows = self.run.signals()[["step", "time"]].dropna()
        return dict(zip(rows["step"].tolist(), rows["time"].tolist(), strict=True))


def link_to(dashboard: str, run: str, rule: str) -> str:
    """The URL of an alarm in the dashboard. `dashboard` may be the URL of the run's page."""
    page = dashboard.split("#")[0].rstrip("/")
    if "/run/" not in page:
        page += f"/run/{quote(run)}"
    return f"{page}#alarm-{quote(rule)}"


def _stage(alert: AnyAlert) -> tuple[str, str, int]:
    return alert.severity, alert.state, len(alert.episodes)


def _resolve(alert: AnyAlert, step: int | None) -> AnyAlert:
    """The alarm as resolved: the run has continued, or its steps were undone."""
    *earlier, (start, _) = alert.episodes
    episodes: Any = (*earlier, (start, step))
    return replace(alert, state="resolved", episodes=episodes)


class Monitor:
    """A follower in a thread of its own, for a training loop, which must not wait for it."""

    def __init__(self, path: Path, every: float = 5.0) -> None:
        self._follower = Follower(path)
        self._every = every
        self._phase: str | None = None
        self._news: list[dict[str, Any]] = []
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="lldscope-monitor", daemon=True)
        self._thread.start()

    def poll(self) -> tuple[str | None, list[dict[str, Any]]]:
        """The phase at the last update, and the alarms that have changed since the last call."""
        with self._lock:
            news, self._news = self._news, []
            return self._phase, news

    def close(self) -> None:
        """Read the run once more, and stop."""
        self._end.set()
        self._thread.join()

    def _loop(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._end.wait(self._every)
            try:
                update = self._follower.poll()
            except Exception as error:  # a monitor that fails must not end the training
                log.warning("lldscope: the monitor could not look at the run: %s", error)
                continue
            if update is not None:
                with self._lock:
                    self._phase = update.state.phase
                    self._news += [event.alert_dict() for event in update.events]
