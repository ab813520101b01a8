"""The answers that go out: a fault is a status and a sentence, never a traceback; a page has a
content policy.

The content policy says what a browser may load and run, so that escaping is not the only wall.
Inline scripts are named by their hashes, and style sheets show a nonce that is new with each page:
text of a run that got into a page as either would do nothing. Dash and Plotly add style sheets by
script, which get the nonce from the script at the head of the page. Attributes `style` stay
allowed, because Plotly draws with them.
"""

from __future__ import annotations

import base64
import hashlib
import traceback
from collections.abc import Iterable

import duckdb
import pyarrow as pa
from dash.exceptions import (
    DependencyException,
    InvalidCallbackReturnValue,
    InvalidResourceError,
    PreventUpdate,
)
from flask import Flask, Response, has_request_context, request
from werkzeug.exceptions import HTTPException

from lldscope.core.errors import LldscopeError

QUESTIONS = "/_dash-update-component"
UNREADABLE = (duckdb.Error, OSError, pa.ArrowException)  # as when a run is deleted meanwhile


def add_answers(server: Flask) -> None:
    """Attach the answers to faults; Dash's answers to its own exceptions stay."""

    @server.errorhandler(HTTPException)
    def http(error: HTTPException) -> Response:
        return sentence(f"{error.name}.", error.code or 500)

    @server.errorhandler(LldscopeError)
    def answer(error: LldscopeError) -> Response:
        return sentence(str(error), 404)

    @server.errorhandler(Exception)
    def fault(error: Exception) -> Response:
        if isinstance(error, UNREADABLE):
            return sentence("The run cannot be read now; it may have been deleted.", 404)
        if request.path == QUESTIONS and not _is_ours(error):
            return sentence("This page asks what this version does not answer: reload it.", 400)
        server.logger.exception("%s %s", request.method, request.path)
        return sentence("Internal error; see the console of lldscope dash.", 500)

    # Flask prefers the handler of the more special class.
    server.register_error_handler(PreventUpdate, lambda error: Response(status=204))
    for kind in (InvalidResourceError, DependencyException):
        server.register_error_handler(kind, lambda error: sentence("There is no such file.", 404))


def _is_ours(error: Exception) -> bool:
    """Whether an exception comes from our code. Dash itself raises any exception for a malformed
    question, or one of a tab that was opened before an update."""
    frames = traceback.walk_tb(error.__traceback__)
    packages = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames]
    if "dash" in packages:  # what stands before it is no answer yet (shared_answers)
        packages = packages[packages.index("dash") :]
    return isinstance(error, InvalidCallbackReturnValue) or "lldscope_dashboard" in packages


def at(path: str) -> str:
    """A path of this dashboard as a browser asks for it: behind a proxy below a prefix."""
    return f"{request.script_root if has_request_context() else ''}{path}"


def sentence(text: str, status: int) -> Response:
    """A plain answer of one line."""
    return Response(text + "\n", status, mimetype="text/plain")


def content_policy(scripts: Iterable[str], nonce: str | None) -> str:
    """The header for a page with these inline scripts and no others; None for other answers."""
    runs = " ".join(["'self'", *map(_hash, scripts)])
    looks = "'self'" if nonce is None else f"'self' 'nonce-{nonce}'"
    return (
        f"default-src 'self'; script-src {runs}; script-src-attr 'none'; style-src {looks}; "
        "style-src-attr 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
        "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
