"""Answers other than pages: metrics for Prometheus, and a run's report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flask import Flask, Response
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from lldscope.core import palette
from lldscope.core.errors import LldscopeError
from lldscope.core.terminal import plain, visible
from lldscope.monitor.summary import Summary
from lldscope.report import post_mortem
from lldscope.report.document import document
from lldscope.report.html import html

from .data.run_registry import RunRegistry
from .data.run_summaries import RunSummaries

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
        response = Response(text, mimetype="text/html")
        file = f"{visible(name.rsplit('/', 1)[-1], 100)}.html"
        response.headers.set("Content-Disposition", "attachment", filename=file)
        return response



_METRICS = {
    "lldscope_verdict": "1 for the verdict that the run has, 0 for the others.",
    "lldscope_phase": "1 for the phase that the run is in.",
    "lldscope_live": "1 while the run is live, 0 once it has ended.",
    "lldscope_alarm": "1 for each alarm that fires; acknowledged or snoozed ones have quiet=yes.",
    "lldscope_last_step": "The last step recorded.",
    "lldscope_last_row_timestamp_seconds": "When the last row was written, Unix time.",
    "lldscope_evidence": "Evidence of the decay test; it alarms at lldscope_evidence_limit.",
    "lldscope_evidence_limit": "Evidence at which the decay test alarms.",
    "lldscope_signal": "Last measured value of a signal.",
    "lldscope_unreadable": "1 for a run that cannot be read.",
}
Sample = tuple[str, dict[str, str], float]


def exposition(lines: Sequence[Summary]) -> bytes:
    """The metrics of these runs, without runs that were not read yet."""
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for line in lines:
        for name, labels, value in _of(line) if line.state or line.error else ():
            if name not in gauges:
                gauges[name] = Gauge(name, _METRICS[name], [*labels], registry=registry)
            # who asks with curl has a terminal, which obeys escapes
            gauges[name].labels(**{key: plain(text) for key, text in labels.items()}).set(value)
    return generate_latest(registry)


def _of(line: Summary) -> Iterator[Sample]:
    run = {"run": line.title, "path": line.name}
    state = line.state
    if state is None:
        yield "lldscope_unreadable", run, 1.0
        return
    for verdict in palette.VERDICTS:
        if verdict != "unreadable":
            yield "lldscope_verdict", run | {"verdict": verdict}, float(state.verdict == verdict)
    yield "lldscope_phase", run | {"phase": palette.PHASES[state.phase].word}, 1.0
    yield "lldscope_live", run, float(state.life == "live")
    for alert in state.firing:
        quiet = "yes" if alert.rule in state.silenced else "no"
        about = {"alarm": alert.rule, "severity": str(alert.severity), "quiet": quiet}
        yield "lldscope_alarm", run | about, 1.0
    if state.last_step is not None:
        yield "lldscope_last_step", run, float(state.last_step)
    if line.last_time is not None:
        yield "lldscope_last_row_timestamp_seconds", run, line.last_time
    if "evidence" in line.last:
        yield "lldscope_evidence", run, line.last["evidence"]
        yield "lldscope_evidence_limit", run, state.arl
    for signal, value in line.last.items():
        if signal != "evidence":
            yield "lldscope_signal", run | {"signal": signal}, value
