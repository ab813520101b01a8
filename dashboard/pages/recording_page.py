"""What recording a run costs and what lies on disk: overhead, files, attempts, heartbeats."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from dash import dcc, html

from lldscope.core.terminal import visible
from lldscope.figures.series import floats
from lldscope.runs import Run
from lldscope.storage import layout

from ..data.snapshot import Snapshot
from . import components as parts
from .frame import REFRESH_MS
from .links import Query, crumbs

MOST_ATTEMPTS = 20  # shown, the last ones


def recording_page(snapshot: Snapshot, query: Query) -> html.Div:
    """The page. Raises LldscopeError if the run cannot be read."""
    return html.Div(
        [
            parts.page_head("Recording", above=crumbs(snapshot.name, snapshot.title)),
            html.Div(facts(snapshot), id="recording", className="recording"),
            dcc.Store(id="names", data=[snapshot.name]),
            dcc.Interval(id="recording-clock", interval=REFRESH_MS),
            dcc.Store(id="recording-tick"),
        ]
    )


def facts(snapshot: Snapshot) -> list[Any]:
    """Everything the page says, as of now. Raises LldscopeError if the run cannot be read."""
    run = snapshot.run
    return [
        html.Div(parts.status_line(snapshot), className="status"),
        html.Div(
            [
                _card("Recorder", _recorder(snapshot)),
                _card("On disk", _files(run)),
                _card("Attempts", _attempts(snapshot)),
                _card("Heartbeats", _heartbeats(run)),
                _card("Damage", _damage(snapshot)),
            ],
            className="cards",
        ),
    ]


def _card(title: str, content: list[Any]) -> html.Section:
    return html.Section([html.H2(title), *content], className="card facts")


def _recorder(snapshot: Snapshot) -> list[Any]:
    """What recording cost each step, from the trainer's own clock, and what was dropped."""
    table = snapshot.subject.table
    seconds, at = floats(table, "seconds_record"), floats(table, "time")
    pairs = [("steps recorded", f"{len(table):,}")]
    whole = np.diff(at, prepend=np.nan)
    share = seconds[1:][whole[1:] > 0] / whole[1:][whole[1:] > 0]
    finite, shares = seconds[np.isfinite(seconds)], share[np.isfinite(share)]
    if len(finite):
        pairs.append(("recording a step", f"{1000 * np.median(finite):,.1f} ms, median"))
        pairs.append(("in all", _duration(float(finite.sum()))))
    if len(shares):
        pairs.append(("share of a step", f"{100 * np.median(shares):.2f} %, median"))
    if not len(finite):
        pairs.append(("recording a step", "the trainer does not measure it (seconds_record)"))
    drops = snapshot.state.dropped
    pairs.append(("rows dropped", f"{sum(drops.values()):,}" if drops else "none"))
    pairs += [(visible(why), f"{n:,}") for why, n in list(drops.items())[:10]]
    return [_pairs(pairs)]


def _files(run: Run) -> list[Any]:
    """Parts that count, by table."""
    listed = layout.read_manifest(run.path).parts

    def row(name: str, of: list[Any]) -> list[str]:
        size = _bytes(sum(p.size for p in of))
        return [name, f"{len(of):,}", f"{sum(p.rows for p in of):,}", size]

    tables = sorted({p.table for p in listed})
    rows = [row(table, [p for p in listed if p.table == table]) for table in tables]
    rows.append(row("all", listed))
    path = html.P(visible(run.place, 1000), className="quiet path")
    return [path, parts.table(("table", "parts", "rows", "size"), rows, range(1, 4), rest="wrap")]


def _attempts(snapshot: Snapshot) -> list[Any]:
    """When and where each attempt ran, and why it ended."""
    starts = [a for a in snapshot.info.get("attempts") or [] if isinstance(a, dict)]
    first = max(0, len(starts) - MOST_ATTEMPTS)
    rows = []
    for i, start in enumerate(starts[first:], first + 1):
        last = i == len(starts)
        where = start.get("host") or "–"
        process = f", process {start['pid']}" if start.get("pid") else ""
        state = snapshot.info | start if last else start
        rows.append(
            [
                str(i),
                _clock(start.get("started")),
                visible(f"{where}{process}", 100),
                _clock(state.get("ended")),
                visible(_ending(state, snapshot if last else None)),
            ]
        )
    return [parts.table(("attempt", "started", "where", "ended", "why"), rows, rest="wrap")]


def _ending(attempt: dict[str, Any], snapshot: Snapshot | None) -> str:
    """How an attempt ended; `snapshot` is that of the run if it is the last attempt."""
    status, reason = attempt.get("status"), attempt.get("reason")
    if snapshot is not None and snapshot.state.life in ("live", "stalled"):
        status, reason = snapshot.state.life, snapshot.state.reason
    if status is None or status == "running":
        return "not recorded: its process was killed, or run.json could not be written"
    return f"{status}: {reason}" if reason else str(status)


def _heartbeats(run: Run) -> list[Any]:
    rows = [
        [
            str(rank),
            parts.since(beat.get("time"), rows=False),
            visible(beat.get("pid") or ("closed" if beat.get("closed") else "–")),
            visible(beat.get("step", "–")),
        ]
        for rank, beat in sorted(run.heartbeats().items())[:64]
    ]
    if not rows:
        return [html.P("No process has written a heartbeat.", className="quiet")]
    return [parts.table(("rank", "last heartbeat", "process", "step"), rows, rest="wrap")]


def _damage(snapshot: Snapshot) -> list[Any]:
    damaged = list(snapshot.state.damaged.items())
    if not damaged:
        return [html.P("Nothing is damaged.", className="quiet")]
    rows = [[visible(place), visible(why)] for place, why in damaged[:50]]
    more = f" The first 50 of {len(damaged)} are shown." if len(damaged) > 50 else ""
    text = f"Left out of every chart; lldscope doctor says what can be done.{more}"
    return [html.P(text, className="quiet"), parts.table(("what", "why"), rows, rest="wrap")]


def _pairs(pairs: list[tuple[str, str]]) -> html.Dl:
    return html.Dl([x for k, v in pairs for x in (html.Dt(k), html.Dd(v))])


def _clock(moment: Any) -> str:
    if not isinstance(moment, int | float):
        return "–"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))


def _duration(seconds: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _bytes(count: int) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} B"
