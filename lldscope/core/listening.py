"""A socket to listen on, or a sentence that says why there is none."""

from __future__ import annotations

import errno
import socket

from .errors import LldscopeError, UsageError

BACKLOG = 128


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises UsageError for a port that cannot be,
    LldscopeError for one that cannot be had."""
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
