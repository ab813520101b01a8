"""Sends alarms to other programs and people, without blocking.

Each channel has a queue and a thread of its own, so that a dead server delays neither the run being
watched nor the other channels.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

from .channels import Channel, Command, Undeliverable, open_channel, warn
from .follow import AlertEvent

RETRY_AFTER = (1.0, 2.0, 4.0, 8.0)  # seconds between attempts
QUEUE = 100  # events that wait for one channel; the oldest are dropped first


class Delivery:
    """A channel with a queue and a thread: sends in order, retries, and reports a failure once."""

    _END: Any = object()

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.flush_seconds = channel.flush_seconds
        self._queue: queue.Queue[AlertEvent] = queue.Queue(QUEUE)
        self._failing = False
        self.lost = 0  # events that were not delivered
        self._busy = False
        self._thread = threading.Thread(target=self._work, name="lldscope-notify", daemon=True)
        self._thread.start()

    def enqueue(self, event: AlertEvent) -> None:
        """Queue an event; never blocks. A full queue drops its oldest: the newest state counts."""
        while True:
            try:
                return self._queue.put_nowait(event)
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self._queue.get_nowait()
                    self.lost += 1

    def close(self, end: float) -> None:
        """Deliver what is queued until `end` (monotonic time); report what was not delivered."""
        self.enqueue(self._END)
        self._thread.join(max(0.0, end - time.monotonic()))
        left = self._busy + sum(e is not self._END for e in list(self._queue.queue))
        if self.lost + left:
            warn(f"{self._channel.name}: {self.lost + left} changes in all were not delivered.")

    def _work(self) -> None:
        while (event := self._queue.get()) is not self._END:
            self._busy = True
            try:
                self._send(event)
                self._failing = False
            except Exception as error:
                self.lost += 1
                if not self._failing:
                    why = error if isinstance(error, Undeliverable) else type(error).__name__
                    rule = event.alert.rule
                    warn(f"{self._channel.name}: {rule} was not delivered: {why}.")
                self._failing = True
            self._busy = False

    def _send(self, event: AlertEvent) -> None:
        for wait in (*RETRY_AFTER, None):
            try:
                self._channel.send(event)
                return
            except Undeliverable:
                if wait is None or not self._channel.retries:
                    raise
                time.sleep(wait)


class Notifier:
    """Sends every change of an alarm once to every channel, and again to addresses every `repeat`
    seconds while it fires. Alarms of severity info are not sent. A context manager, whose exit
    waits a limited time for what is still queued."""

    def __init__(
        self, urls: Sequence[str], command: str | None = None, repeat: float | None = None
    ) -> None:
        addresses = [open_channel(url, number) for number, url in enumerate(urls, 1)]
        commands = [Command(command)] if command else []
        self._repeat = repeat
        self._addresses = [Delivery(channel) for channel in addresses]
        self._commands = [Delivery(channel) for channel in commands]
        self._firing: dict[str, tuple[AlertEvent, float]] = {}  # rule → what was sent, and when

    def send(self, events: Sequence[AlertEvent], silenced: Container[str] = ()) -> None:
        """Queue the changes of an update, and the alarms that are due again. An alarm that is
        `silenced` is not sent while it fires."""
        now = time.monotonic()
        for event in events:
            quiet = event.alert.state == "firing" and event.alert.rule in silenced
            if event.alert.severity == "info" or quiet:
                continue
            for channel in (*self._addresses, *self._commands):
                channel.enqueue(event)
            self._firing.pop(event.alert.rule, None)
            if event.alert.state == "firing":
                self._firing[event.alert.rule] = (event, now)
        for rule, (event, last_time) in self._firing.items():
            if self._repeat and now - last_time >= self._repeat and rule not in silenced:
                for channel in self._addresses:
                    channel.enqueue(replace(event, time=time.time()))
                self._firing[rule] = (event, now)

    def __enter__(self) -> Notifier:
        return self

    def __exit__(self, *exception: object) -> None:
        now = time.monotonic()
        for channel in (*self._addresses, *self._commands):
            channel.close(now + channel.flush_seconds)
