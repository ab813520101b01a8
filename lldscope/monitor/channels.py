"""Where notifications go: webhooks, services through apprise, a command.

An address is a secret: it is never printed, nor is an error text that may contain it. Messages name
it by its number and scheme.
"""

from __future__ import annotations

import logging
import os
import signal
import ssl
import subprocess
import sys
import tempfile
from base64 import b64encode
from http.client import HTTPException
from typing import IO, Protocol
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit, urlunsplit

from ..core.errors import UsageError
from ..core.version import __version__
from ..storage.json_files import to_json
from .alertmanager import as_text, payload
from .follow import AlertEvent

VARIABLE = "LLDSCOPE_NOTIFY"  # addresses, separated by blanks; --notify wins

HTTP_SECONDS = 10.0  # for an answer to one request
TRANSIENT = {408, 425, 429, *range(500, 600)}  # HTTP statuses worth a retry
FLUSH_SECONDS = 15.0  # at the end, for what is still queued
COMMAND_SECONDS = 60.0  # a command that takes longer is killed
OUTPUT_BYTES = 8192  # of a command's output, which is passed on


class Undeliverable(Exception):
    """Why a notification failed, without secrets; `temporary`: worth a retry."""

    def __init__(self, why: str, *, temporary: bool = False) -> None:
        super().__init__(why)
        self.temporary = temporary


def warn(text: str) -> None:
    """Print a warning to the stderr of `watch`."""
    print(f"lldscope: {text}", file=sys.stderr, flush=True)


class Channel(Protocol):
    """A destination. `send` returns once the event is delivered, and raises Undeliverable."""

    name: str
    flush_seconds: float

    def send(self, event: AlertEvent) -> None: ...


class Webhook:
    """Posts Alertmanager's webhook JSON. Follows no redirect; honours the proxy variables."""

    flush_seconds = FLUSH_SECONDS

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        try:
            parts = urlsplit(url)
            if not parts.hostname or parts.port == 0:
                raise ValueError
        except ValueError:
            raise UsageError(f"{name} names no host, or no valid port.") from None
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": f"lldscope/{__version__}",
        }
        user, _, host = parts.netloc.rpartition("@")
        if user:
            code = b64encode(unquote(user).encode()).decode()
            self._headers["Authorization"] = f"Basic {code}"
        self._url = urlunsplit(parts._replace(netloc=host, fragment=""))
        self._opener = request.OpenerDirector()
        for handler in (
            request.ProxyHandler(),
            request.HTTPHandler(),
            request.HTTPSHandler(),
            request.HTTPErrorProcessor(),
            request.HTTPDefaultErrorHandler(),  # a redirect is an error like any other
        ):
            self._opener.add_handler(handler)

    def send(self, event: AlertEvent) -> None:
        body = to_json(payload(event)).encode()
        try:
            post = request.Request(self._url, body, self._headers, method="POST")
            self._opener.open(post, timeout=HTTP_SECONDS).close()
        except HTTPError as error:
            error.close()
            moved = ", a redirect, which is not followed" if 300 <= error.code < 400 else ""
            why = f"HTTP status {error.code}{moved}"
            raise Undeliverable(why, temporary=error.code in TRANSIENT) from None
        except (OSError, HTTPException, ValueError) as error:
            raise Undeliverable(_reason(error), temporary=isinstance(error, OSError)) from None


def _reason(error: BaseException) -> str:
    """The reason of an error, with no part of an address in it."""
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        error = error.reason
    if isinstance(error, TimeoutError):
        return f"no answer within {HTTP_SECONDS:.0f} s"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or type(error).__name__})"
    if isinstance(error, OSError) and error.strerror and error.errno is not None:
        return os.strerror(error.errno) if error.errno > 0 else "the host's name is not known"
    return type(error).__name__


class Service:
    """Slack, Discord, e-mail and whatever else apprise knows."""

    flush_seconds = FLUSH_SECONDS

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        try:
            import apprise
        except ImportError:
            raise UsageError(
                f"{name} is sent by apprise, which is not installed: "
                "pip install 'lldscope[notify]'. Webhooks (http, https) need nothing."
            ) from None
        # Its messages may hold addresses.
        logging.getLogger("apprise").addHandler(logging.NullHandler())
        logging.getLogger("apprise").propagate = False
        self._service = apprise.Apprise()
        if not self._service.add(url):
            raise UsageError(
                f"{name} is no address that apprise understands; its forms: "
                "https://appriseit.com/services/."
            )

    def send(self, event: AlertEvent) -> None:
        title, body = as_text(event)
        firing = "failure" if event.alert.severity == "critical" else "warning"
        kind = "success" if event.alert.state == "resolved" else firing
        if not self._service.notify(body=body, title=title, notify_type=kind, body_format="text"):
            raise Undeliverable("apprise could not deliver it", temporary=True)


class Command:
    """Runs the user's own command with the alarm as JSON on stdin; its output goes to stderr."""

    name = "the --on-alert command"
    flush_seconds = COMMAND_SECONDS

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
        )  # fmt: skip
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
            f"Notification address {number} is no URL: it begins with a scheme, as in https://… "
            "or slack://…."
        )
    known = scheme.lower() if scheme.isalnum() else "?"
    name = f"notification address {number} ({known})"
    return (Webhook if known in ("http", "https") else Service)(url, name)
