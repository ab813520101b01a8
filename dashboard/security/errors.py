"""Answers to what cannot be answered: a status and a sentence, and never a traceback.

Callbacks get what a browser sends, and anybody can send something else: what does not fit the page
is the sender's fault (400). Whatever else is raised is ours (500), and is logged.
"""

from __future__ import annotations

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


def add_answers(server: Flask) -> None:
    """Attach the answers; what Dash itself answers to its own exceptions stays."""

    @server.errorhandler(HTTPException)
    def http(error: HTTPException) -> Response:
        return sentence(f"{error.name}.", error.code or 500)

    @server.errorhandler(LldscopeError)
    def told(error: LldscopeError) -> Response:
        return sentence(str(error), 404)

    @server.errorhandler(Exception)
    def fault(error: Exception) -> Response:
        if isinstance(error, UNREADABLE):
            return sentence("The run cannot be read now; it may have been deleted.", 404)
        if request.path == CALLBACKS and isinstance(error, (*_MALFORMED, DashException)):
            at = error.__traceback__
            while at and at.tb_next:
                at = at.tb_next
            where = f"{at.tb_frame.f_code.co_qualname}:{at.tb_lineno}" if at else "?"
            server.logger.debug("malformed callback: %s in %s", type(error).__name__, where)
            return sentence("This question does not fit the page it names. Reload the page.", 400)
        server.logger.exception("%s %s", request.method, request.path)
        return sentence("Something went wrong here; the console of lldscope dash says what.", 500)

    # Flask prefers the handler of the more special class.
    server.register_error_handler(PreventUpdate, lambda error: Response(status=204))
    for kind in (InvalidResourceError, DependencyException):
        server.register_error_handler(kind, lambda error: sentence("There is no such file.", 404))


def sentence(text: str, status: int) -> Response:
    """A plain answer of one line."""
    return Response(text + "\n", status, mimetype="text/plain")
