"""Responses of a run in a grid: filtered, sorted, fifty at a time; a row leads to its tokens.

All of the view is in the address: the filters are a form, the order and the page are links.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dash import dcc, html

from lldscope.core.numbers import number
from lldscope.core.terminal import visible
from lldscope.explore.responses import (
    ORDERS,
    PAGE,
    LargestDrops,
    Page,
    ResponseQuery,
    find_responses,
    largest_drops_at,
)
from lldscope.explore.trajectories import rows_of

from ..data.snapshot import Snapshot
from ..figures import delta_colors as deltas
from . import components
from .frame import Query, address, attrs, crumbs, pager, text, whole, yes_no

_ANSWER = re.compile(r"<answer>\s*(.*?)\s*(?:</answer>|\Z)", re.DOTALL)
PREVIEWED = 52  # characters of a line of the preview
STRONG = 5.0  # nats that a response must lose or gain for the full colour

# Column, its heading, its sort key.
_COLUMNS = (
    ("step", "step"), ("group", "group"), ("response", None), ("class", None),
    ("Δ, nats", "delta"), ("question and answer", None), ("reward", "reward"),
    ("log π per token", "logp"), ("tokens", "tokens"), ("actions", None), ("data source", None),
)
_TEXT = ("response", "class", "data source", "question and answer")
_NUMBERS = [i for i, (title, _) in enumerate(_COLUMNS) if title not in _TEXT]


# What an address may ask for: fields of a ResponseQuery, and how each is read.
_READ: dict[str, Callable[[Query, str], Any]] = {
    "first": whole, "last": whole, "correct": yes_no, "tokens": yes_no, "text": text,
}


def responses_page(snapshot: Snapshot, query: Query) -> html.Div:
    """The grid; `at=STEP`: the responses that lost most where an alarm fired. Raises LldscopeError
    if the run cannot be read or the answer takes too long."""
    name, run = snapshot.name, snapshot.run
    notice: list[Any] = []
    if (at := whole(query, "at")) is not None:
        drops = largest_drops_at(run, at)
        notice = _notice(name, visible(text(query, "alarm") or "the alarm", 60), drops)
        query = {"first": [str(drops.first)], "last": [str(drops.last)], "correct": ["yes"],
                 "tokens": ["yes"] if drops.tokens else [], "sort": ["delta"]}
    filters = {key: read(query, key) for key, read in _READ.items()}
    grid = Grid(name, {key: query[key][0] for key in _READ if filters[key] is not None})
    order = text(query, "sort") or "step"
    grid.fields["sort"] = order if order in ORDERS else "step"
    if text(query, "way") == "down":
        grid.fields["way"] = "down"
    page = find_responses(run, ResponseQuery(**filters), grid.order, grid.descending,
                          whole(query, "from") or 0)
    many = "no response" if not page.total else f"{page.total:,} responses"
    count = html.P(many if page.total != 1 else "1 response", className="quiet count")
    return html.Div(
        [
            components.page_head("Responses", count, above=crumbs(name, snapshot.title)),
            *notice,
            form(grid),
            _table(grid, page),
            _pager(grid, page),
        ],
        style=deltas.COLORS,
    )


@dataclass(frozen=True)
class Grid:
    """Filters and order of the grid of a run's responses: the query of its address."""

    name: str
    fields: dict[str, str]

    @property
    def order(self) -> str:
        """The column that sorts the rows."""
        return self.fields["sort"]

    @property
    def descending(self) -> bool:
        """Whether the largest come first."""
        return "way" in self.fields

    def href(self, **more: Any) -> str:
        """The address of this grid, with parts of it changed."""
        return address("responses", self.name, **(self.fields | more))


def _notice(name: str, alarm: str, drops: LargestDrops) -> list[Any]:
    """Which alarm led here, and what the responses that lost most are."""
    last = f"–{drops.last:,}" if drops.first < drops.last else ""
    which = "with recorded tokens" if drops.tokens else "(no tokens were recorded)"
    words = (f"{alarm} fired at step {drops.step:,}. Shown: correct responses of steps "
             f"{drops.first:,}{last} {which}, greatest loss first. ")
    wider = address("responses", name, first=max(0, drops.step - 9), last=drops.step,
                    correct="yes", sort="delta")
    link = html.A("All correct responses of these ten steps", href=wider)
    return [html.Div([words, link], className="notice", role="status")]


def _table(grid: Grid, page: Page) -> html.Div:
    if not page.total:
        text = "No response matches these filters."
        return html.Div(html.P(text), className="card empty")
    head = [_head(grid, title, by) for title, by in _COLUMNS]
    rows = [_row(grid, row) for row in rows_of(page.rows)]
    return html.Div(components.table(head, rows, _NUMBERS, "card grid"), className="wide")


def _head(grid: Grid, title: str, by: str | None) -> html.Th:
    number = None if title in _TEXT else "number"
    if by is None:
        return html.Th(title, className=number, scope="col")
    ours, down = by == grid.order, grid.descending
    arrow = [html.Span(" ▾" if down else " ▴", **attrs(aria_hidden="true"))] if ours else []
    sort = attrs(aria_sort=("descending" if down else "ascending") if ours else None)
    there = grid.href(sort=by, way="down" if ours and not down else None)
    return html.Th(html.A([title, *arrow], href=there), className=number, scope="col", **sort)


def _row(grid: Grid, row: dict[str, Any]) -> list[Any]:
    href = address("response", grid.name, step=row["step"], rank=row["rank"] or None,
                   id=row["response_id"])
    style = deltas.tint(row["delta"], STRONG, "number", "delta", faint=deltas.FAINT)
    cut = [html.Span("cut", className="pill")] if row["truncated"] else []
    return [
        components.count(row["step"]),
        components.count(row["group_id"]),
        html.A(title_of(row), href=href, className="run-link"),
        class_of(row),
        html.Td(deltas.nats(row["delta"], row["not_finite"]), **style),
        html.Td(_preview(row), className="preview"),
        *(number(row[name]) for name in ("reward", "logp")),
        [*cut, components.count(row["n_tokens"])],
        components.count(row["n_actions"]),
        html.Td(visible(row["data_source"] or "–", 40), className="quiet"),
    ]


def _preview(row: dict[str, Any]) -> list[Any]:
    """The end of the question over the answer, a line each."""
    lines = ((row["question"], "quiet"), (answer_of(row["answer"]), ""))
    return [
        html.Div(end_of(words, PREVIEWED), className=look, title=visible(words))
        for words, look in lines if words
    ]


def answer_of(words: str | None) -> str | None:
    """The answer of a response: the text in its last answer tag, or the whole text."""
    tagged = _ANSWER.findall(words or "")
    return tagged[-1] if tagged and tagged[-1] else words


def end_of(words: str, most: int) -> str:
    """The end of a text, in one line."""
    plain = " ".join(words.split())
    return visible(plain if len(plain) <= most else f"… {plain[-most:]}")


def title_of(row: dict[str, Any]) -> str:
    """The number of a response, with its rank unless that is 0."""
    return f"{row['response_id']}" + (f" of rank {row['rank']}" if row["rank"] else "")


def class_of(row: dict[str, Any]) -> html.Span:
    """Correct, wrong or unknown: a mark and a word."""
    shape, word = {True: ("✓", "correct"), False: ("✗", "wrong")}.get(
        row["correct"], ("?", "unknown")
    )
    return html.Span([html.Span(shape, className="shape"), word], className=f"class {word}")


def _pager(grid: Grid, page: Page) -> html.Div:
    def at(offset: int) -> str | None:
        return grid.href(from_=offset or None) if 0 <= offset < page.total else None

    first, last = page.offset, min(page.offset + PAGE, page.total)
    return pager(first + 1, last, page.total, at(first - PAGE), at(first + PAGE))


def form(grid: Grid) -> html.Form:
    """The filters as fields; the order is a hidden one."""
    now = grid.fields

    def field(key: str, kind: Any, width: float, **more: Any) -> Any:
        return dcc.Input(
            id={"type": "want", "index": key}, name=key, value=now.get(key), type=kind,
            style={"width": f"{width}em"}, **more,
        )

    def want(title: str, content: Any) -> html.Label:
        return html.Label([html.Span(title, className="key"), content], className="want")

    def choice(title: str, key: str) -> html.Label:
        choices = [
            html.Option(word, value=value, selected="selected" if value == now.get(key) else None)
            for value, word in (("", "any"), ("yes", "yes"), ("no", "no"))
        ]
        return want(title, html.Select(choices, name=key))

    return html.Form(
        [
            want("steps from", field("first", "number", 7)),
            want("to", field("last", "number", 7)),
            choice("correct", "correct"),
            choice("tokens recorded", "tokens"),
            want("text", field("text", "search", 15, placeholder="in question or answer")),
            *(field(key, "hidden", 0) for key in ("sort", "way") if key in now),
            html.Button("Show", type="submit", className="button primary"),
            html.A("Clear", href=address("responses", grid.name), className="button plain"),
        ],
        action=address("responses", grid.name), method="GET", className="wants card",
    )
