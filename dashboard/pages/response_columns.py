"""A response as a column: its head, its turns and tokens, coloured as the address says."""

from __future__ import annotations

from typing import Any

from dash import html

from lldscope.core.numbers import number
from lldscope.explore.trajectories import Key, Trajectory, rows_of

from ..figures import delta_colors as deltas
from ..figures import token_overlays as overlays
from . import components as parts
from . import token_view
from .links import Query, address, attrs, text
from .responses_page import class_of, title_of


def here(name: str, key: Key, query: Query, **more: Any) -> str:
    """The address of a response, coloured as this one."""
    values = {"step": key.step, "rank": key.rank or None, "id": key.response_id} | more
    return address("response", name, **values, color=color_of(query))


def side_by_side(name: str, key: Key, query: Query) -> str:
    """The address of the responses of its group."""
    values = {"step": key.step, "rank": key.rank or None, "id": key.response_id}
    return address("group", name, **values, color=color_of(query))


def color_of(query: Query) -> str | None:
    """What colours the tokens, as an address says it: nothing of the usual."""
    key = overlays.overlay_of(text(query, "color")).key
    return None if key == "delta" else key


def coloring(query: Query, responses: list[Trajectory]) -> list[Any]:
    """The choice of what colours the tokens, and what the colours mean. What was measured of no
    token is not to be chosen."""
    selection = overlays.overlay_of(text(query, "color"))
    tokens = [token for one in responses for token in rows_of(one.tokens)]
    options = []
    for key, overlay in overlays.OVERLAYS.items():
        there = any(overlay.value(token) is not None for token in tokens)
        options.append(
            html.Option(
                overlay.name if there else f"{overlay.name} (not measured)",
                value="" if key == "delta" else key,
                selected="selected" if key == selection.key else None,
                disabled=None if there or key == selection.key else "disabled",
            )
        )
    label = html.Span("colour shows", className="key")
    select = html.Select(options, **attrs(data_address="color"))
    choice = html.Label([label, select], className="want")
    return [html.Div([choice, overlays.legend(selection)], className="coloring")]


def column(
    name: str, item: Trajectory, query: Query, side: str, head: list[Any], shared: int, same: int
) -> html.Section:
    """`side` begins the ids of its tokens. `shared` own tokens begin as those of the other do, and
    its first `same` actions brought the same documents."""
    row = item.about
    mark = (text(query, "mark") or "").removeprefix(side)
    position = int(mark) if mark.isdecimal() else None
    delta = f"Δ {deltas.nats(row['delta'], row['not_finite'])} nats"
    head = [*head, html.Span(delta, className="quiet")]
    if len(item.tokens) or item.n_tokens:
        overlay = overlays.overlay_of(text(query, "color"))
        looks = token_view.Looks(overlay, side, position)
        after = here(name, item.key, query, from_=item.first + token_view.MOST_TOKENS)
        body = token_view.turns(item, looks, shared, after)
    else:
        body = token_view.without_tokens(item, same)
    return html.Section([html.Header(head), *body], className="card words")


def facts_of(row: dict[str, Any]) -> list[Any]:
    """Class, reward and advantage of a response."""
    facts = [("reward", number(row["reward"])), ("advantage", number(row["advantage"]))]
    return [class_of(row), *(parts.fact(name, value) for name, value in facts)]


def describe(row: dict[str, Any]) -> str:
    """A response and its class, in words."""
    word = {True: "correct", False: "wrong"}.get(row["correct"], "of unknown class")
    return f"response {title_of(row)}, {word}"


STATUS = html.Div(
    "Hover over a token, or reach it with Tab and the arrow keys, for its numbers.",
    id="token-status", role="status", **attrs(aria_live="polite"),
)
