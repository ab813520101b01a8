"""Tell other programs and people of alarms, without waiting for them.

Each address has a queue and a thread of its own, so that no dead server delays the watching or the
others.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .channels import Channel, Command, Undeliverable, open_channel
from .follow import AlertEvent

RETRY_AFTER = (1.0, 2.0, 4.0, 8.0)  # seconds between attempts
QUEUE = 100  # alarms that wait for one address; the oldest gives way


class Delivery:
    """An outlet with a queue and a thread: tells in order, tries again, says once that it fails."""

    _END: Any = object()

    def __init__(self, told: Channel) -> None:
        self._outlet = told
        self._queue: queue.Queue[AlertEvent] = queue.Queue(QUEUE)
        self._failing = False
        self.lost = 0  # alarms that nobody was told of
        self._busy = False
        self._thread = threading.Thread(target=self._work, name="lldscope-notify", daemon=True)
        self._thread.start()

    def put(self, event: AlertEvent) -> None:
        """Take an event; never waits. A full queue loses its oldest: the newest state counts."""
        while True:
            try:
                return self._queue.put_nowait(event)
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self._queue.get_nowait()
                    self.lost += 1

    def close(self, end: float) -> None:
        """Deliver what waits until `end` (monotonic time); say what could not be delivered."""
        self.put(self._END)
        self._thread.join(max(0.0, end - time.monotonic()))
        left = self._busy + sum(e is not self._END for e in list(self._queue.queue))
        if self.lost + left:
            _complain(f"{self._outlet.name} was not told of {self.lost + left} changes in all.")

    def _work(self) -> None:
        while (event := self._queue.get()) is not self._END:
            self._busy = True
            try:
                self._tell(event)
                self._failing = False
            except Exception as error:
                self.lost += 1
                if not self._failing:
                    why = error if isinstance(error, Undeliverable) else type(error).__name__
                    rule = event.alert.rule
                    _complain(f"{self._outlet.name} could not be told of {rule}: {why}.")
                self._failing = True
            self._busy = False

    def _tell(self, event: AlertEvent) -> None:
        for wait in (*RETRY_AFTER, None):
            try:
                self._outlet.tell(event)
                return
            except Undeliverable as error:
                if wait is None or not error.passing:
                    raise
                time.sleep(wait)


def _complain(text: str) -> None:
    print(f"lldscope: {text}", file=sys.stderr, flush=True)


class Notifier:
    """Tells every outlet of every change of an alarm, once, and `addresses` again every `repeat`
    seconds while it fires. Alarms of severity info are not sent. A context manager: its end waits,
    for a limited time, for what is still on its way."""

    def __init__(
        self, urls: Sequence[str], command: str | None = None, repeat: float | None = None
    ) -> None:
        addresses = [open_channel(url, number) for number, url in enumerate(urls, 1)]
        commands = [Command(command)] if command else []
        self._repeat = repeat
        self._addresses = [Delivery(told) for told in addresses]
        self._commands = [Delivery(told) for told in commands]
        self._limit = max((o.flush_seconds for o in [*addresses, *commands]), default=0.0)
        self._firing: dict[str, tuple[AlertEvent, float]] = {}  # rule → what was sent, and when

    def tell(self, events: Sequence[AlertEvent]) -> None:
        """Send the changes of a look, and what is due again."""
        now = time.monotonic()
        for event in events:
            if event.alert.severity == "info":
                continue
            for channel in (*self._addresses, *self._commands):
                channel.put(event)
            self._firing.pop(event.alert.rule, None)
            if event.alert.state == "firing":
                self._firing[event.alert.rule] = (event, now)
        for rule, (event, sent) in self._firing.items():
            if self._repeat and now - sent >= self._repeat:
                for channel in self._addresses:
                    channel.put(replace(event, time=time.time()))
                self._firing[rule] = (event, now)

    def __enter__(self) -> Notifier:
        return self

    def __exit__(self, *exception: object) -> None:
        end = time.monotonic() + self._limit
        for channel in (*self._addresses, *self._commands):
            channel.close(end)
