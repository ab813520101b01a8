"""Recording never ends a training: an error is logged once, counted, and costs its rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("lldscope")


class FailOpen:
    """`with fail_open("a step"): …` around everything that an adapter does inside a training.

    `source` names the trainer in the recorder's `dropped`; `seconds` is the time spent inside.
    """

    def __init__(self, recorder: Any, source: str) -> None:
        self._recorder, self._source = recorder, source
        self._started: float | None = None
        self._taken = 0.0
        self._logged = False
        self.seconds = 0.0

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        self._started = time.perf_counter()
        try:
            yield
        except Exception as error:
            message = f"{self._source}: {what}: {type(error).__name__}: {error}"
            self._recorder.dropped[message] += 1
            if not self._logged:
                self._logged = True
                log.exception(
                    "lldscope: %s is not recorded; training goes on. This is logged once.", what
                )
        finally:
            self.seconds += time.perf_counter() - self._started
            self._started = None

    def take(self) -> float:
        """Seconds spent inside since the last call, up to now."""
        now = self.seconds
        if self._started is not None:
            now += time.perf_counter() - self._started
        taken, self._taken = now - self._taken, now
        return taken
