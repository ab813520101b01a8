"""Answers to what cannot be answered: a status and a sentence, and never a traceback.

Callbacks get what a browser sends, and anybody can send something else: what does not fit the page
is the sender's fault (400) where it is raised by the code that reads the question. Whatever else is
raised is ours (500), and is logged as an error.
"""

from __future__ import annotations

import traceback

import duckdb
import pyarrow as pa
from dash.exceptions import (
    DashException,
    DependencyException,
    InvalidResourceError,
    PreventUpdate,
)
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from lldscope.core.errors import LldscopeError

CALLBACKS = "/_dash-update-component"
UNREADABLE = (duckdb.Error, OSError, pa.ArrowException)  # as when a run is deleted meanwhile
_MALFORMED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


# The modules that take apart what a browser sends; "" is Dash itself.
_READS_QUESTIONS = ("", "callbacks", "pages.frame")


def add_answers(server: Flask) -> None:
    """Attach the answers; what Dash itself answers to its own exceptions stays."""

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
        malformed = isinstance(error, DashException) or (
            isinstance(error, _MALFORMED) and _raised_in(error) in _READS_QUESTIONS
        )
        if request.path == CALLBACKS and malformed:
            return sentence("The request does not match this page. Reload it.", 400)
        server.logger.exception("%s %s", request.method, request.path)
        return sentence("Internal error; see the console of lldscope dash.", 500)

    # Flask prefers the handler of the more special class.
    server.register_error_handler(PreventUpdate, lambda error: Response(status=204))
    for kind in (InvalidResourceError, DependencyException):
        server.register_error_handler(kind, lambda error: sentence("There is no such file.", 404))


def _raised_in(error: Exception) -> str:
    """The module of this package where an exception began; empty if that was before any of it."""
    frames = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
    package = __name__.partition(".")[0]
    ours = [n for n in frames if n.partition(".")[0] in (package, "lldscope")]
    return ours[-1].removeprefix(f"{package}.") if ours else ""


def sentence(text: str, status: int) -> Response:
    """A plain answer of one line."""
    return Response(text + "\n", status, mimetype="text/plain")
