"""Serve the dashboard: one socket, waitress, and a guard before everything.

Every request must show the token: once in the address, afterwards by cookie; programs show it as a
bearer. Without a token only this machine may ask, and only under a loopback name, so that a web
page which points its own name at 127.0.0.1 learns nothing.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from lldscope.core.errors import LldscopeError, UsageError
from lldscope.core.listening import listen

if TYPE_CHECKING:
    from flask import Flask

THREADS = 8
SHORTEST_TOKEN = 12  # characters; trying them all takes longer than anybody has
PATIENCE = 2.0  # seconds a page waits for a run that is opened; then it says so and asks again
MOST_CONNECTIONS = 1000  # slow ones cost memory only: a request gets a thread when it is whole
IDLE_SECONDS = 30  # until a connection on which nothing happens is closed
MOST_ASKED = 1 << 20  # bytes of a request; a page sends names and a view
_PREFIX = re.compile(r"(/[\w.~-]+)*", re.ASCII)
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def serve(
    root: Path, host: str = "127.0.0.1", port: int = 8050, token: str | None = None,
    prefix: str = "",
) -> None:
    """Serve the runs under `root` until interrupted; `prefix` is the path at which a proxy has it.

    Raises UsageError for an open host without token, LldscopeError if `root` does not exist or the
    port cannot be had.
    """
    if token is None and not is_loopback(host):
        raise UsageError(
            f"Serving on {host} lets other machines read the runs. Leave --no-token out; or leave "
            "--host out and forward the port with ssh -L."
        )
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise UsageError(
            f"The token is shorter than {SHORTEST_TOKEN} characters, so it could be guessed. Leave "
            "--token out: one is generated for your account."
        )
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"--prefix {prefix}: write a path such as /lldscope.")
    if not root.is_dir():
        raise LldscopeError(f"There is no folder {root}. Give the folder that holds the runs.")
    listener = listen(host, port)
    port = listener.getsockname()[1]
    import logging

    from waitress.server import create_server

    from lldscope.storage.cache import cache_dir

    from .app import make_app
    from .data.run_registry import RunRegistry

    logging.getLogger("waitress").setLevel(logging.ERROR)
    app = make_app(RunRegistry(root, PATIENCE, cache_dir()), prefix)
    guard(app.server, host, port, token)
    server = create_server(
        app.server,
        sockets=[listener],
        threads=THREADS,
        ident="lldscope",
        url_prefix=prefix,
        max_request_body_size=MOST_ASKED,
        connection_limit=MOST_CONNECTIONS,
        channel_timeout=IDLE_SECONDS,
        cleanup_interval=IDLE_SECONDS // 6,
        asyncore_use_poll=True,  # select() takes no more than 1,024 of them
    )
    _announce(host, port, token, prefix)
    server.run()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def guard(server: Flask, host: str, port: int, token: str | None) -> None:
    """Require the token; without one, require a local host name."""
    from flask import Response, request

    from .security import sentence

    cookie = f"lldscope_{port}"

    def refuse() -> Response | None:
        if token is None:
            address = request.host.lower()
            name = address.rsplit(":", 1)[0] if address[-1:] != "]" else address
            if name in (*_LOCAL_NAMES, host.lower()):
                return None
            return sentence(f"This dashboard answers to localhost only, not to {name}.", 403)
        value = request.args.get("token") or request.cookies.get(cookie) or _bearer()
        if value is not None and hmac.compare_digest(value.encode(), token.encode()):
            return None
        return sentence(
            "This dashboard needs a token. Open the address that `lldscope dash` printed, or add "
            "?token=… to this one.", 401,
        )

    def _bearer() -> str | None:
        """The token as Prometheus shows it: Authorization: Bearer TOKEN."""
        auth = request.authorization
        return auth.token if auth is not None and auth.type == "bearer" else None

    def remember(response: Response) -> Response:
        if token is not None and "token" in request.args and response.status_code < 400:
            response.set_cookie(cookie, token, httponly=True, samesite="Strict")
        return response

    server.before_request(refuse)
    server.after_request(remember)


def _announce(host: str, port: int, token: str | None, prefix: str) -> None:
    """Print the address on stderr."""
    place = f"[{host}]" if ":" in host else host
    query = f"?token={quote(token)}" if token else ""
    print(f"lldscope dashboard: http://{place}:{port}{prefix}/{query}", file=sys.stderr)
    if is_loopback(host):
        there = socket.gethostname()
        print(f"from elsewhere:     ssh -L {port}:{place}:{port} {there}", file=sys.stderr)
    print("Ctrl-C ends it.", file=sys.stderr, flush=True)
