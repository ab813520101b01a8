"""Answers that are no pages: metrics for Prometheus, the data of a chart as CSV, a run's report."""

from __future__ import annotations

import pandas as pd
from flask import Flask, Response, request

from lldscope.core.errors import LldscopeError
from lldscope.report import post_mortem
from lldscope.report.document import document
from lldscope.report.html import html

from .data.histograms import read_bins
from .data.metrics import needs_run, with_columns
from .data.run_registry import RunRegistry
from .data.run_summaries import RunSummaries
from .figures.histogram import Histogram
from .pages.drawing import charts_of
from .prometheus import exposition

READ_SECONDS = 5.0  # for runs that have changed; Prometheus waits 10 s


def add_routes(server: Flask, registry: RunRegistry, summaries: RunSummaries) -> None:
    """Attach the routes; the guard of the server stands before them, too."""

    @server.route("/metrics")
    def metrics() -> Response:
        text = exposition(summaries.now(READ_SECONDS))
        return Response(text, content_type="text/plain; version=0.0.4; charset=utf-8")

    @server.route("/csv/<path:name>")
    def csv(name: str) -> Response:
        try:
            snapshot = registry.snapshot(name)
            charts = charts_of([request.args.get("chart", "")], [snapshot])
            if not charts:
                raise LldscopeError("There is no such chart.")
            (chart,) = charts
            subject = snapshot.subject
            if isinstance(chart, Histogram):
                table = read_bins(snapshot.run, chart).cells
                return _download(name, chart.id, table[["first", "last", "low", "high", "n"]])
            run = snapshot.run if needs_run(subject, chart) else None
            table = with_columns(subject, run, chart).table
        except LldscopeError as error:
            return Response(f"{error}\n", 404, mimetype="text/plain")
        columns = [line.column for line in chart.lines if line.column in table]
        mask = table[columns].notna().any(axis="columns")
        return _download(name, chart.id, table.loc[mask, ["step", *columns]])

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


def _download(name: str, chart: str, table: pd.DataFrame) -> Response:
    file = f"{_file_name(name)}-{_file_name(chart.replace('/', '-'))}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{file}"'}
    return Response(table.to_csv(index=False), mimetype="text/csv", headers=headers)
