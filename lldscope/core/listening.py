"""A socket to listen on, and the token that clients must show."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from pathlib import Path

from .errors import LldscopeError, UsageError

BACKLOG = 128


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. Raises UsageError if the port is invalid,
    LldscopeError if it is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OverflowError:
        raise UsageError(f"There is no port {port}; ports go from 0 to 65535.") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LldscopeError(f"Port {port} is in use. Choose another one with --port.") from None
        why = error.strerror or str(error)
        raise LldscopeError(f"Cannot listen on {host}, port {port}: {why}.") from None


def user_token() -> str:
    """The token for this user's dashboards: created once, in a file that only the user can read,
    and the same after a restart, so that open pages and bookmarks keep working. Raises
    LldscopeError if the file can be neither read nor created."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(base) / "lldscope" / "dashboard-token"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(new, "a", encoding="ascii") as file:
            if file.tell() == 0:  # if two processes write at once, the first line counts
                file.write(secrets.token_urlsafe(24) + "\n")
        os.chmod(path, 0o600)
        return path.read_text("ascii").split()[0]
    except (OSError, ValueError, IndexError) as error:
        why = getattr(error, "strerror", None) or "it holds no token"
        raise LldscopeError(
            f"{path} cannot be used: {why}. Give a token with LLDSCOPE_TOKEN, or --no-token."
        ) from None
