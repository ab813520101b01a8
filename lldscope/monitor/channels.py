"""Where notifications go: addresses that apprise knows, and a command.

An address is a secret: it is never printed, nor is an error text that may contain it. Messages name
it by its number and scheme.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from typing import IO, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ..core.errors import UsageError
from ..core.terminal import plain
from ..core.version import __version__
from ..diagnosis.registry import STALLED
from ..storage.json_files import to_json
from .follow import AlertEvent

VARIABLE = "LLDSCOPE_NOTIFY"  # addresses, separated by blanks; --notify wins

FLUSH_SECONDS = 15.0  # at the end, for what is still queued
COMMAND_SECONDS = 60.0  # a command that takes longer is killed
OUTPUT_BYTES = 8192  # of a command's output, which is passed on


class Undeliverable(Exception):
    """Why a notification failed, without secrets."""


def warn(text: str) -> None:
    """Print a warning to the stderr of `watch`."""
    print(f"lldscope: {text}", file=sys.stderr, flush=True)


class Channel(Protocol):
    """A destination. `send` returns once the event is delivered, and raises Undeliverable."""

    name: str
    flush_seconds: float
    retries: bool  # what has failed may go later

    def send(self, event: AlertEvent) -> None: ...


class Service:
    """Webhooks, Slack, Discord, e-mail and whatever else apprise knows. A webhook gets apprise's
    JSON with the event as `alert`; no redirect is followed."""

    flush_seconds = FLUSH_SECONDS
    retries = True

    def __init__(self, url: str, name: str) -> None:
        self.name = name
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
        # The address of a Slack or Discord webhook is one of theirs to apprise.
        if not (self._services.add(url) or self._services.add(_json_address(url))):
            raise UsageError(
                f"{name} is not an address that apprise understands; its forms: "
                "https://appriseit.com/services/."
            )

    def send(self, event: AlertEvent) -> None:
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
    """apprise's form of the address of a webhook: json://… with marked parameters."""
    try:
        parts = urlsplit(url)
        query = urlencode([(f"-{name}", value) for name, value in parse_qsl(parts.query)])
    except ValueError:
        return ""
    scheme = {"http": "json", "https": "jsons"}.get(parts.scheme.lower(), "")
    return urlunsplit((scheme, parts.netloc, parts.path, query, "")) if scheme else ""


def as_text(event: AlertEvent) -> tuple[str, str]:
    """Title and body for people; numbers and what to do are in the text."""
    alert = event.alert
    start, resolved = alert.episodes[-1]
    what = f"{alert.rule} in run {plain(event.state.run)}"
    link = f"\n{event.link}" if event.link else ""
    if alert.state == "resolved" and alert.rule == STALLED.id and not event.state.over:
        return (
            f"resumed: run {plain(event.state.run)}",
            f"It stopped at step {start} and goes on; the verdict is: "
            f"{event.state.sign.word}.{link}",
        )
    if alert.state == "resolved":
        return (
            f"resolved: {what}",
            f"It fired at step {start} and is resolved at step {resolved}; "
            f"the verdict is: {event.state.sign.word}.{link}",
        )
    return (
        f"{alert.severity}: {what}",
        f"Step {start}: {plain(alert.message).rstrip('.')}.\n{plain(alert.advice)}{link}",
    )


class Command:
    """Runs the user's own command with the alarm as JSON on stdin; its output goes to stderr."""

    name = "the --on-alert command"
    flush_seconds = COMMAND_SECONDS
    retries = False

    def __init__(self, command: str) -> None:
        self._command = command

    def send(self, event: AlertEvent) -> None:
        # A file, not a pipe: a child that the command leaves behind may keep it open. And not the
        # terminal, where a live block may be.
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


def open_channel(url: str, number: int) -> Channel:
    """The channel for an address; UsageError, without the address in it, if there is none."""
    scheme, colon, _ = url.partition("://")
    if not colon:
        raise UsageError(
            f"Notification address {number} is not a URL: it begins with a scheme, as in https://… "
            "or slack://…."
        )
    protocol = scheme.lower() if scheme.isalnum() else "?"
    name = f"notification address {number} ({protocol})"
    return Service(url, name)
