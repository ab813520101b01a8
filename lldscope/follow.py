"""Follow a live run: what is new since the last look. Used by `watch`, `demo` and `train`."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .check import check
from .errors import RunNotFound
from .runs import Run, open_run

log = logging.getLogger("lldscope")


@dataclass(frozen=True)
class Look:
    """The state of the run and the alarms whose state has changed since the last look."""

    state: dict[str, Any]
    changed: list[dict[str, Any]]


class Follower:
    """Looks at a run again and again, from any state: not there yet, running, finished, dead."""

    def __init__(self, path: Path, arl: float | None = None) -> None:
        self.path, self.arl = path, arl
        self.run: Run | None = None
        self._known: dict[str, tuple[str, int]] = {}

    def look(self) -> Look | None:
        """The run now; None while there is no run at the path."""
        try:
            if self.run is None:
                self.run = open_run(self.path)
            else:
                self.run.refresh()
        except RunNotFound:
            return None
        state = check(self.run, self.arl)
        return Look(state, [a for a in state["alerts"] if self._is_news(a)])

    def _is_news(self, alert: dict[str, Any]) -> bool:
        now = (alert["state"], len(alert["episodes"]))
        before = self._known.get(alert["rule"])
        self._known[alert["rule"]] = now
        return before != now


class Monitor:
    """A follower in a thread of its own, for a training loop that must not wait for it."""

    def __init__(self, path: Path, every: float = 5.0) -> None:
        self._follower = Follower(path)
        self._every = every
        self._phase: str | None = None
        self._news: list[dict[str, Any]] = []
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="lldscope-monitor", daemon=True)
        self._thread.start()

    def look(self) -> tuple[str | None, list[dict[str, Any]]]:
        """Phase at the monitor's last look, and the alarms that changed since the last call."""
        with self._lock:
            news, self._news = self._news, []
            return self._phase, news

    def close(self) -> None:
        """Look once more, and stop."""
        self._end.set()
        self._thread.join()

    def _loop(self) -> None:
        ended = False
        while not ended:
            ended = self._end.wait(self._every)
            try:
                look = self._follower.look()
            except Exception as error:  # a monitor that fails must not end the training
                log.warning("lldscope: the monitor could not look at the run: %s", error)
                continue
            if look is not None:
                with self._lock:
                    self._phase = look.state["phase"]
                    self._news += look.changed
