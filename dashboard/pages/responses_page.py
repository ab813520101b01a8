"""Responses of a run in a grid: filtered, sorted, fifty at a time; a row leads to its tokens.

All of the view is in the address: the filters are a form, the order and the page are links.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dash import html

from lldscope.core.numbers import number
from lldscope.core.terminal import visible
from lldscope.explore.responses import (
    PAGE,
    LargestDrops,
    Page,
    data_sources,
    find_responses,
    largest_drops_at,
)
from lldscope.explore.trajectories import rows_of

from ..data.snapshot import Snapshot
from ..figures import delta_colors as deltas
from . import components as parts
from .links import Query, address, attrs, crumbs, way, whole
from .response_filters import Grid, form, grid_of

PREVIEWED = 52  # characters of a line of the preview
STRONG = 5.0  # nats that a response must lose or gain for the full colour

# Column, what it is called, what it sorts by.
_COLUMNS = (
    ("step", "step"), ("group", "group"), ("response", None), ("class", None),
    ("Δ, nats", "delta"), ("question and answer", None), ("reward", "reward"),
    ("log π per token", "logp"),
    ("tokens", "tokens"), ("actions", None), ("searches", None), ("data source", None),
    ("recorded", None),
)
_TEXT = ("response", "class", "data source", "recorded", "question and answer")
_NUMBERS = [i for i, (title, _) in enumerate(_COLUMNS) if title not in _TEXT]


def responses_page(snapshot: Snapshot, query: Query) -> html.Div:
    """The grid. Raises LldscopeError if the run cannot be read or the answer takes too long."""
    name = snapshot.name
    run = snapshot.run
    at = whole(query, "at")
    drops = None if at is None else largest_drops_at(run, at)
    grid = grid_of(name, query, drops)
    page = find_responses(run, grid.query, grid.order, grid.descending, whole(query, "from") or 0)
    many = "no response" if not page.total else f"{page.total:,} responses"
    count = html.P(many if page.total != 1 else "1 response", className="quiet count")
    return html.Div(
        [
            parts.page_head("Responses", count, above=crumbs(name, snapshot.title)),
            *_notice(grid, drops),
            form(grid, data_sources(run)),
            _table(grid, page),
            _pager(grid, page),
        ],
        style=deltas.COLORS,
    )


def _notice(grid: Grid, drops: LargestDrops | None) -> list[Any]:
    """Which alarm led here, and, if they are shown, what the responses that lost most are."""
    if drops is None:
        return []
    rule = visible(grid.alarm or "the alarm", 60)
    is_default = grid == replace(grid_of(grid.name, {}, drops), alarm=grid.alarm, at=grid.at)
    text = f"{rule} fired at step {drops.step:,}." + (f" {_which(drops)}" if is_default else "")
    wider = address(
        "responses", grid.name, alarm=grid.alarm, at=drops.step,
        first=max(0, drops.step - 9), last=drops.step, correct="yes", sort="delta",
    )
    link = html.A("All correct responses up to the alarm, with tokens or without", href=wider)
    return [html.Div([text, " ", link], className="notice", role="status")]


def _which(drops: LargestDrops) -> str:
    """What the rows are that an alarm leads to."""
    if drops.moved:
        return (
            f"In the steps up to it no correct response that lost likelihood has its tokens "
            f"recorded; the nearest step with one, step {drops.first:,}, is shown here."
        )
    if drops.tokens:
        return (
            f"Shown are the correct responses of steps {drops.first:,}–{drops.last:,} whose "
            "tokens were recorded, the greatest loss first."
        )
    return (
        "No tokens of correct responses that lost likelihood were recorded; open a "
        "response to see its actions."
    )


def _table(grid: Grid, page: Page) -> html.Div:
    if not page.total:
        text = "No response matches these filters. Missing values match no bound."
        return html.Div(html.P(text), className="card empty")
    head = [_head(grid, title, by) for title, by in _COLUMNS]
    rows = [_row(grid, row) for row in rows_of(page.rows)]
    return html.Div(parts.table(head, rows, _NUMBERS, "card grid"), className="wide")


def _head(grid: Grid, title: str, by: str | None) -> html.Th:
    number = None if title in _TEXT else "number"
    if by is None:
        return html.Th(title, className=number, scope="col")
    ours, down = by == grid.order, grid.descending
    arrow = [html.Span(" ▾" if down else " ▴", **attrs(aria_hidden="true"))] if ours else []
    sort = attrs(aria_sort=("descending" if down else "ascending") if ours else None)
    there = replace(grid, order=by, descending=ours and not down).href()
    return html.Th(html.A([title, *arrow], href=there), className=number, scope="col", **sort)


def _row(grid: Grid, row: dict[str, Any]) -> list[Any]:
    href = address(
        "response", grid.name, step=row["step"], rank=row["rank"] or None, id=row["response_id"],
        sort=grid.order if grid.order != "step" else None,
    )
    style = deltas.tint(row["delta"], STRONG, "number", "delta", faint=deltas.FAINT)
    source = "tokens" if row["has_tokens"] else "text" if row["has_text"] else "actions"
    cut = [html.Span("cut", className="pill")] if row["truncated"] else []
    return [
        parts.count(row["step"]),
        _group(grid, row),
        html.A(title_of(row), href=href, className="run-link"),
        class_of(row),
        html.Td(deltas.nats(row["delta"], row["not_finite"]), **style),
        html.Td(_preview(row), className="preview"),
        *(number(row[name]) for name in ("reward", "logp")),
        [*cut, parts.count(row["n_tokens"])],
        *(parts.count(row[name]) for name in ("n_actions", "n_searches")),
        html.Td(visible(row["data_source"] or "–", 40), className="quiet"),
        html.Td(source, className="quiet"),
    ]


def _preview(row: dict[str, Any]) -> list[Any]:
    """The end of the question over the end of the answer, a line each."""
    lines = ((row["question"], "quiet"), (row["answer"], ""))
    texts = [(" ".join(str(text).split()), look) for text, look in lines if text]
    return [html.Div(_end(text), className=look, title=visible(text)) for text, look in texts]


def _end(text: str) -> str:
    return visible(text if len(text) <= PREVIEWED else f"… {text[-PREVIEWED:]}")


def title_of(row: dict[str, Any]) -> str:
    """A response's number; with its rank where that is not 0."""
    return f"{row['response_id']}" + (f" of rank {row['rank']}" if row["rank"] else "")


def class_of(row: dict[str, Any]) -> html.Span:
    """Correct, wrong or unknown: a mark and a word."""
    shape, word = {True: ("✓", "correct"), False: ("✗", "wrong")}.get(
        row["correct"], ("?", "unknown")
    )
    return html.Span([html.Span(shape, className="shape"), word], className=f"class {word}")


def _group(grid: Grid, row: dict[str, Any]) -> Any:
    """A group's number, which leads to its responses side by side."""
    if row["group_id"] is None:
        return "–"
    href = address(
        "group", grid.name, step=row["step"], rank=row["rank"] or None, id=row["response_id"]
    )
    return html.A(f"{row['group_id']:,}", href=href)


def _pager(grid: Grid, page: Page) -> html.Div:
    """Which rows these are, and the way to those before and after."""

    def at(offset: int) -> str | None:
        return grid.href(from_=offset or None) if 0 <= offset < page.total else None

    last = min(page.offset + PAGE, page.total)
    here = f"{page.offset + 1:,}–{last:,} of {page.total:,}" if page.total else ""
    before = at(page.offset - PAGE) if page.offset else None
    return html.Div(
        [way("Previous", before, "["), html.Span(here), way("Next", at(page.offset + PAGE), "]")],
        className="pager",
    )
