"""Sends alarms to URLs that apprise supports, and to a command, without blocking.

Each destination has its own queue and thread, so a dead server delays nothing else. A URL is a
secret: neither a URL nor an error text that may contain one is ever printed. Messages identify a
URL by number and scheme.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import IO
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ..core.errors import UsageError
from ..core.terminal import plain
from ..core.version import __version__
from ..diagnosis.registry import STALLED
from ..storage.json_files import to_json
from .follow import AlertEvent

VARIABLE = "LLDSCOPE_NOTIFY"  # addresses, separated by blanks; --notify wins

RETRY_AFTER = (1.0, 2.0, 4.0, 8.0)  # seconds between attempts
FLUSH_SECONDS = 15.0  # at the end, for queued messages
COMMAND_SECONDS = 60.0  # a command that takes longer is killed
OUTPUT_BYTES = 8192  # of a command's output, which is passed on


class Undeliverable(Exception):
    """Why a notification failed, without secrets."""


class Channel:
    """A destination with a queue and a thread: delivers in order, retries after the seconds in
    `waits`, and reports a failure once."""

    def __init__(self, name: str, waits: Sequence[float], flush_seconds: float) -> None:
        self.name, self._waits, self._flush_seconds = name, waits, flush_seconds
        self._queue: queue.SimpleQueue[AlertEvent | None] = queue.SimpleQueue()
        self._events = self._deliveries = 0  # counts
        self._thread = threading.Thread(target=self._work, name="lldscope-notify", daemon=True)
        self._thread.start()

    def deliver(self, event: AlertEvent) -> None:
        """Return once the event is delivered; raises Undeliverable."""
        raise NotImplementedError

    def enqueue(self, event: AlertEvent) -> None:
        """Queue an event; never blocks."""
        self._events += 1
        self._queue.put(event)

    def close(self, start: float) -> None:
        """Deliver what is queued, for a limited time from `start` (monotonic); report the rest."""
        self._queue.put(None)
        self._thread.join(max(0.0, start + self._flush_seconds - time.monotonic()))
        if losses := self._events - self._deliveries:
            _warn(f"{self.name}: {losses} changes in all were not delivered.")

    def _work(self) -> None:
        is_failing = False
        while (event := self._queue.get()) is not None:
            try:
                self._attempt(event)
            except Exception as error:
                if not is_failing:
                    why = error if isinstance(error, Undeliverable) else type(error).__name__
                    _warn(f"{self.name}: {event.alert.rule} was not delivered: {why}.")
                is_failing = True
            else:
                self._deliveries += 1
                is_failing = False

    def _attempt(self, event: AlertEvent) -> None:
        for wait in self._waits:
            try:
                self.deliver(event)
                return
            except Undeliverable:
                time.sleep(wait)
        self.deliver(event)


def _warn(text: str) -> None:
    print(f"lldscope: {text}", file=sys.stderr, flush=True)


class Service(Channel):
    """Webhooks, Slack, Discord, e-mail and the other services of apprise. A webhook gets apprise's
    JSON with the event as `alert`; redirects are not followed. Raises UsageError, without the URL
    in it, if the URL is invalid; `number` is its position among the URLs."""

    def __init__(self, url: str, number: int) -> None:
        scheme, colon, _ = url.partition("://")
        if not colon:
            raise UsageError(
                f"Notification address {number} is not a URL: it begins with a scheme, as in "
                "https://… or slack://…."
            )
        protocol = scheme.lower() if scheme.isalnum() else "?"
        name = f"notification address {number} ({protocol})"
        try:
            import apprise
        except ImportError:
            raise UsageError(
                f"{name} is sent by apprise, which is not installed: "
                "pip install 'lldscope[notify]'."
            ) from None
        # Its messages may hold addresses.
        logging.getLogger("apprise").addHandler(logging.NullHandler())
        logging.getLogger("apprise").propagate = False
        asset = apprise.AppriseAsset(app_id=f"lldscope/{__version__}", http_redirects=False)
        self._services = apprise.Apprise(asset=asset)
        # apprise itself recognizes the address of a Slack or Discord webhook.
        if not (self._services.add(url) or self._services.add(_json_address(url))):
            raise UsageError(
                f"{name} is not a URL that apprise supports; supported forms: "
                "https://appriseit.com/services/."
            )
        super().__init__(name, RETRY_AFTER, FLUSH_SECONDS)

    def deliver(self, event: AlertEvent) -> None:
        from apprise.plugins.custom_json import NotifyJSON

        title, body = as_text(event)
        firing = "failure" if event.alert.severity == "critical" else "warning"
        kind = "success" if event.alert.state == "resolved" else firing
        alert = json.loads(to_json(event.to_dict()))
        for service in self._services:
            if isinstance(service, NotifyJSON):
                service.payload_extras = {"alert": alert}
        if not self._services.notify(body=body, title=title, notify_type=kind, body_format="text"):
            raise Undeliverable("apprise could not deliver it")


def _json_address(url: str) -> str:
    """apprise's form of a webhook's URL: json://… with marked parameters."""
    try:
        parts = urlsplit(url)
        query = urlencode([(f"-{name}", value) for name, value in parse_qsl(parts.query)])
    except ValueError:
        return ""
    scheme = {"http": "json", "https": "jsons"}.get(parts.scheme.lower(), "")
    return urlunsplit((scheme, parts.netloc, parts.path, query, "")) if scheme else ""


def as_text(event: AlertEvent) -> tuple[str, str]:
    """Title and body of a message for people, with the numbers and the advice."""
    alert, state = event.alert, event.state
    start, resolved = alert.episodes[-1]
    what = f"{alert.rule} in run {plain(state.run)}"
    verdict = f"the verdict is: {state.sign.word}."
    if alert.state == "firing":
        title = f"{alert.severity}: {what}"
        text = f"Step {start}: {plain(alert.message).rstrip('.')}.\n{plain(alert.advice)}"
    elif alert.rule == STALLED.id and not state.over:
        title = f"resumed: run {plain(state.run)}"
        text = f"It stopped at step {start} and goes on; {verdict}"
    else:
        title = f"resolved: {what}"
        text = f"It fired at step {start} and is resolved at step {resolved}; {verdict}"
    return title, f"{text}\n{event.link}" if event.link else text


class Command(Channel):
    """Runs the user's own command with the alarm as JSON on stdin; its output goes to stderr."""

    def __init__(self, command: str) -> None:
        self._command = command
        super().__init__("the --on-alert command", (), COMMAND_SECONDS)

    def deliver(self, event: AlertEvent) -> None:
        # Not a pipe, which a child that the command leaves behind may keep open; and not the
        # terminal, which may show a live block.
        with tempfile.TemporaryFile() as output:
            try:
                self._run(to_json(event.to_dict()) + "\n", output)
            finally:
                output.seek(0)
                if text := output.read(OUTPUT_BYTES).decode(errors="replace").rstrip():
                    print(text, file=sys.stderr, flush=True)

    def _run(self, text: str, output: IO[bytes]) -> None:
        process = subprocess.Popen(
            self._command, shell=True, stdin=subprocess.PIPE, stdout=output, stderr=output,
            encoding="utf-8", start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != VARIABLE},
        )
        try:
            process.communicate(text, timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            raise Undeliverable(f"not finished after {COMMAND_SECONDS:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode:
            raise Undeliverable(f"exit code {process.returncode}")


class Notifier:
    """Sends every change of an alarm once to every channel, and while the alarm fires again to
    URLs, every `repeat` seconds. Alarms of severity info are not sent. A context manager; its exit
    waits a limited time for queued messages."""

    def __init__(
        self, urls: Sequence[str], command: str | None = None, repeat: float | None = None
    ) -> None:
        self._repeat = repeat
        self._addresses = [Service(url, number) for number, url in enumerate(urls, 1)]
        self._channels = [*self._addresses, *([Command(command)] if command else [])]
        self._firing: dict[str, tuple[AlertEvent, float]] = {}  # rule → sent event, its time

    def send(self, events: Sequence[AlertEvent], silenced: Container[str] = ()) -> None:
        """Queue the changes of an update, and the alarms that are due again. An alarm that is
        `silenced` is not sent while it fires."""
        now = time.monotonic()
        for event in events:
            quiet = event.alert.state == "firing" and event.alert.rule in silenced
            if event.alert.severity == "info" or quiet:
                continue
            for channel in self._channels:
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
        start = time.monotonic()
        for channel in self._channels:
            channel.close(start)
