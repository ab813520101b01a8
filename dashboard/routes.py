"""Answers that are no pages: metrics for Prometheus, and a run's report."""

from __future__ import annotations

from flask import Flask, Response

from lldscope.core.errors import LldscopeError
from lldscope.report import post_mortem
from lldscope.report.document import document
from lldscope.report.html import html

from .data.run_registry import RunRegistry
from .data.run_summaries import RunSummaries
from .prometheus import exposition

READ_SECONDS = 5.0  # for runs that have changed; Prometheus waits 10 s


def add_routes(server: Flask, registry: RunRegistry, summaries: RunSummaries) -> None:
    """Attach the routes; the guard of the server stands before them, too."""

    @server.route("/metrics")
    def metrics() -> Response:
        text = exposition(summaries.now(READ_SECONDS))
        return Response(text, content_type="text/plain; version=0.0.4; charset=utf-8")

    @server.route("/report/<path:name>")
    def report(name: str) -> Response:
        try:
            text = html(document(post_mortem(registry.snapshot(name).run)))
        except LldscopeError as error:
            return Response(f"{error}\n", 404, mimetype="text/plain")
        headers = {"Content-Disposition": f'attachment; filename="{_file_name(name)}.html"'}
        return Response(text, mimetype="text/html", headers=headers)


def _file_name(name: str) -> str:
    last = name.rsplit("/", 1)[-1]
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in last)
