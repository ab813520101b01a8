"""The page of runs: one line each, live, to sort, filter, group and choose for a comparison."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from hashlib import blake2b
from operator import itemgetter
from typing import Any
from urllib.parse import urlencode

from dash import dcc, html

from lldscope.core import palette
from lldscope.core.terminal import visible
from lldscope.figures.series import make_sparkline
from lldscope.monitor.health import RunState
from lldscope.monitor.summary import Line, Summary

from ..data.run_summaries import RunSummaries
from ..security import at
from . import components
from .frame import PAUSE, REFRESH_MS, Query, attrs, choice_button, evidence, pager, segments, text
from .story import VERDICTS, tab_title, tag_pills

READ_SECONDS = 0.5  # of one refresh of the list; the rest follows at the next
COLUMNS = {
    "run": "run", "verdict": "verdict", "alarms": "alarms", "step": "last step", "age": "last row",
    "reward": "reward", "delta": "Δ",
}
MOST_ROWS = 50  # runs on a page
MOST_ALARMS = 3  # named in a row
NO_RUNS = (
    "There are no runs here yet. Start a training that records into this folder, or run "
    "`lldscope demo`; runs appear here as they start."
)
Choice = dict[str, str]
"""The reader's choice of the list, from its address: `q`, words to find; `verdict`; `sort`, a
column, descending with - before its name; `by=group`, runs under headings; `page`."""


def choice_of(query: Query) -> Choice:
    """The choice that an address asks for; wrong values are passed over."""
    choice = {k: (text(query, k) or "")[:200] for k in ("q", "verdict", "sort", "by", "page")}
    valid = {
        "verdict": choice["verdict"] in VERDICTS,
        "sort": choice["sort"].removeprefix("-") in COLUMNS,
        "by": choice["by"] == "group",
        "page": re.fullmatch("[1-9][0-9]{0,5}", choice["page"]),
    }
    return {key: value for key, value in choice.items() if value and valid.get(key, True)}


def list_page(summaries: RunSummaries, query: Query) -> html.Div:
    """The page as the address asks for it."""
    choice = choice_of(query)
    rows, has, title = run_rows(summaries, choice, [])
    head = html.Tr([html.Th(html.Span("compare", className="unseen")),
                    *(_head(column, choice.get("sort", "verdict")) for column in COLUMNS)])
    root = html.P(str(summaries.registry.root), className="quiet path")
    compare = html.A("Compare", href=at("/compare"), id="compare", className="button disabled")
    buttons = html.Div([PAUSE, compare], className="buttons")
    return html.Div(
        [
            html.Header([html.Div([html.H1("Runs"), root]), buttons], className="page-head"),
            _filters(choice),
            html.Div(html.Table(
                [html.Thead(head), html.Tbody(rows, id="rows")], className="card runs listed"
            ), className="wide"),
            dcc.Store(id="tab-title", data=title),
            dcc.Interval(id="list-clock", interval=REFRESH_MS),
            dcc.Store(id="list-tick"),
            dcc.Store(id="list-view", data={key: [value] for key, value in choice.items()}),
            dcc.Store(id="list-has", data=has),
            dcc.Store(id="picks", data=[]),
        ]
    )


def _head(column: str, sort: str) -> html.Th:
    """The head of a column. It sorts by the column; a second click reverses the order."""
    ours, down = column == sort.removeprefix("-"), sort.startswith("-")
    way = ("descending" if down else "ascending") if ours else "none"
    button = html.Button(COLUMNS[column], className="sort", **attrs(data_sort=column))
    return html.Th(button, className="number" if column == "step" else None,
                   scope="col", **attrs(aria_sort=way))


def _filters(choice: Choice) -> html.Div:
    verdicts = {"": "all"} | {v: palette.VERDICTS[v].word for v in VERDICTS}
    verdicts["healthy"] = palette.NO_ALARM.word
    find = dcc.Input(
        id="find", type="search", value=choice.get("q", ""), className="find",
        placeholder="name, group, tag, alarm …  ( / )",
    )
    return html.Div(
        [
            find,
            segments("verdict", "verdict", verdicts, choice.get("verdict", ""), "", with_key=False),
            choice_button("by~group", "in groups", "by" in choice),
        ],
        className="controls",
    )


# -- the rows, which a refresh sends anew ----------------------------------------------------------


def run_rows(
    summaries: RunSummaries, choice: Choice, picked: list[str]
) -> tuple[list[Any], str, str]:
    """The wanted rows in order, a text that changes when they do, and the title of the tab."""
    lines = summaries.now(READ_SECONDS)
    matches = _sorted([line for line in lines if _is_wanted(line, choice)], choice)
    groups: dict[str, list[Summary]] = {}
    if "by" in choice:
        matches.sort(key=lambda line: (not line.group, _group(line)))
        for line in matches:
            groups.setdefault(_group(line), []).append(line)
    page = min(int(choice.get("page", 1)), -(-len(matches) // MOST_ROWS))
    first = (page - 1) * MOST_ROWS if matches else 0
    on_page = matches[first : first + MOST_ROWS]
    rows: list[Any] = []
    for i, line in enumerate(on_page):
        if groups and (not i or _group(line) != _group(on_page[i - 1])):
            rows.append(_heading(_group(line), groups[_group(line)]))
        rows.append(_row(line, picked))
    if not lines:
        rows = [_wide(html.P(NO_RUNS))]
    elif not matches:
        rows = [_wide(f"No run matches the filter ({len(lines)} in total).")]
    elif len(matches) > MOST_ROWS:
        rows.append(_wide(_pager(choice, page, len(matches))))
    # Ages go on by themselves in the browser.
    states = [line.state and replace(line.state, last_row_age_seconds=None) for line in on_page]
    content = [choice, len(lines), len(matches), [*map(_tally, groups.values())], states,
               [replace(line, state=None) for line in on_page]]
    digest = blake2b(repr(content).encode(errors="replace"), digest_size=8).hexdigest()
    return rows, digest, tab_title([line.state for line in lines if line.state], "Runs")


def _pager(choice: Choice, page: int, runs: int) -> html.Div:
    def there(to: int) -> str | None:
        exists = 0 < to <= -(-runs // MOST_ROWS)
        return at(f"/?{urlencode(choice | {'page': to})}") if exists else None

    first, last = (page - 1) * MOST_ROWS, min(page * MOST_ROWS, runs)
    return pager(first + 1, last, runs, there(page - 1), there(page + 1))


def _sorted(lines: list[Summary], choice: Choice) -> list[Summary]:
    """Rows sorted by a column, then by name. Rows without a value come last in both orders."""
    sort = choice.get("sort", "verdict")
    lines = sorted(lines, key=lambda line: line.name)
    pairs = [(_key(line, sort.removeprefix("-")), line) for line in lines]
    with_key = [(key, line) for key, line in pairs if key is not None]
    with_key.sort(key=itemgetter(0), reverse=sort.startswith("-"))
    return [line for _, line in with_key] + [line for key, line in pairs if key is None]


def _key(line: Summary, column: str) -> Any:
    if column == "run":
        return line.title
    if column == "verdict":
        return VERDICTS.index(verdict) if (verdict := _verdict(line)) else None
    if line.state is None:
        return None
    return {
        "alarms": len(line.state.firing) or None,
        "step": line.state.last_step,
        "age": None if line.last_time is None else -line.last_time,
        "reward": line.reward,
        "delta": line.delta,
    }[column]


def _is_wanted(line: Summary, choice: Choice) -> bool:
    if "verdict" in choice and _verdict(line) != choice["verdict"]:
        return False
    phase = line.state.phase if line.state else ""
    firing = " ".join(a.rule for a in line.state.firing) if line.state else ""
    about = f"{line.title} {line.name} {line.group or ''} {' '.join(line.tags)}"
    text = f"{about} {_verdict(line)} {phase} {firing}".lower()
    return all(word in text for word in choice.get("q", "").lower().split())


def _verdict(line: Summary) -> str:
    """Empty for a run that was not read yet."""
    return line.state.verdict if line.state else "unreadable" if line.error else ""


def _group(line: Summary) -> str:
    return str(line.group or "")


def _tally(members: list[Summary]) -> str:
    states = sorted((m.state for m in members if m.state), key=lambda s: VERDICTS.index(s.verdict))
    counts = [f"{n} {word}" for word, n in Counter(s.sign.word for s in states).items()]
    return ", ".join([f"{len(members)} runs" if len(members) > 1 else "1 run", *counts])


def _wide(content: Any) -> html.Tr:
    return html.Tr(html.Td(content, colSpan=len(COLUMNS) + 1, className="wrap"))


def _heading(group: str, members: list[Summary]) -> html.Tr:
    """The heading of a group: its verdicts, and a link that draws its runs as one line with a
    band."""
    content: list[Any] = [f"{visible(group) if group else 'no group'} · {_tally(members)}"]
    if group and len(members) > 1:
        query = urlencode({"run": [m.name for m in members], "average": "group"}, doseq=True)
        content += [" · ", html.A("mean of the group in charts", href=at(f"/compare?{query}"))]
    head = html.Th(content, colSpan=len(COLUMNS) + 1, scope="rowgroup")
    return html.Tr(head, className="run-group")


def _row(line: Summary, picked: list[str]) -> html.Tr:
    """The row of a run; if the run cannot be read, the row says why."""
    if line.state is None:
        why: list[Any] = ["reading …"]
        if line.error:
            why = [components.badge(palette.VERDICTS["unreadable"]), f" {visible(line.error)}"]
        reason = html.Td(html.Div(why), colSpan=len(COLUMNS) - 1, className="wrap")
        return html.Tr([html.Td(), html.Td(components.run_link(line.name, line.title)), reason])
    state = line.state
    about = attrs(
        aria_checked=str(line.name in picked).lower(), data_pick=line.name,
        aria_label=visible(f"compare {line.title}"),
    )
    pick = html.Button(role="checkbox", className="pick", **about)
    life = [html.Div([html.Span(className=f"dot {state.life}"), components.life_word(state)])]
    if line.last_time is not None:
        life.append(html.Div(components.since(line.last_time), className="quiet"))
    # the place of a run that has another name, and its group
    names = [line.name] if line.title != line.name else []
    names += [str(line.group)] if line.group else []
    below = [html.Div(visible(name), className="quiet") for name in names]
    trend = [html.Div(f"reward {state.trend}", className="quiet")] if state.trend else []
    return html.Tr(
        [
            html.Td(pick),
            html.Td([components.run_link(line.name, line.title), *tag_pills(line.tags), *below]),
            html.Td([components.verdict_badge(state), *trend]),
            html.Td(_alarms(line.name, state), className="alarms"),
            html.Td(components.count(state.last_step), className="number"),
            html.Td(life, className="life"),
            html.Td(_spark(line.lines[0], palette.GREEN, "reward")),
            html.Td(_spark(line.lines[1], palette.BLUE, "Δ of correct responses")),
        ]
    )


def _alarms(name: str, state: RunState) -> list[Any]:
    """The firing alarms, worst first, each with a link to its evidence."""
    firing = [a for a in state.firing if a.severity != "info"]
    rows = [
        html.Div(
            [
                components.mark(palette.SEVERITIES[a.severity]),
                html.A(visible(a.rule, 40), href=evidence(name, a.rule)),
                *([html.Span(" quiet", className="quiet")] if a.rule in state.silenced else []),
            ],
            title=visible(a.message),
        )
        for a in firing[:MOST_ALARMS]
    ]
    more = len(firing) - MOST_ALARMS
    return [*rows, *([html.Div(f"and {more} more", className="quiet")] if more > 0 else [])]


def _spark(line: Line, color: str, name: str) -> Any:
    picture = make_sparkline(line, color)
    return html.Img(src=picture, alt=name, className="spark") if picture else html.Span("–")
