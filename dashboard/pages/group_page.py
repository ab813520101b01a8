"""The responses to one question side by side: reward, Δ, and what each of them says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dash import html

from lldscope.core.numbers import number
from lldscope.explore.responses import KEY
from lldscope.explore.trajectories import Key, Trajectory, key_of, read_trajectory, rows_of

from ..data.snapshot import Snapshot
from ..figures import delta_colors as deltas
from . import token_view
from .components import page_head
from .frame import message_page
from .links import Query, address, attrs, crumbs, whole
from .response_columns import STATUS, coloring, column, facts_of, here
from .responses_page import title_of

MOST_BESIDE = 16  # responses


def group_page(snapshot: Snapshot, query: Query) -> html.Div:
    """The group of the response that the address names. Raises LldscopeError if the run cannot be
    read."""
    name = snapshot.name
    step, target = whole(query, "step"), whole(query, "id", -(2**31))
    if step is None or target is None:
        return message_page("No group is named", "The address must name a step and an id.")
    run = snapshot.run
    key = Key(step, whole(query, "rank") or 0, target)
    response = read_trajectory(run, key)
    if response is None:
        return message_page(
            "There is no such response", f"The run holds no response {target} at step {step}."
        )
    rows = sorted(response.group, key=_order)[:MOST_BESIDE]
    responses = (read_trajectory(run, key_of(row), 0, response.group) for row in rows)
    trajectories = [one for one in responses if one is not None]
    columns = [_column(name, one, query) for one in trajectories]
    left = len(response.group) - len(columns)
    note = "Responses with tokens come first, correct ones by loss of likelihood."
    note += f" {left} more are in the list of responses." if left else ""
    return html.Div(
        [
            _head(name, snapshot.title, response),
            *_question(trajectories),
            *coloring(query, trajectories),
            html.P(note, className="note"),
            html.Div(columns, className="beside-each-other", tabIndex=0, role="region",
                     **attrs(aria_label="responses side by side")),
            STATUS,
        ],
        style=deltas.COLORS,
        className="trajectory",
    )


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    delta = row["delta"]
    unread = not row["has_tokens"], not row["has_text"]
    return *unread, row["correct"] is not True, delta is None, delta or 0.0, [row[k] for k in KEY]


def _head(name: str, label: str, response: Trajectory) -> html.Header:
    step, group = response.key.step, response.about["group_id"]
    place = {"first": step, "last": step} | ({} if group is None else {"group": group})
    way = crumbs(name, label, (f"Responses of step {step:,}", address("responses", name, **place)))
    rewards = [row["reward"] for row in response.group if row["reward"] is not None]
    correct = sum(row["correct"] is True for row in response.group)
    title = f"Group {group} of step {step:,}" if group is not None else "A response without group"
    many = f"{len(response.group)} responses, {correct} correct"
    mean = f"mean reward {number(sum(rewards) / len(rewards))}" if rewards else "no reward recorded"
    about = html.Div([many, " · ", mean], className="status")
    return page_head(title, about, above=way, look="response-head")


def _question(responses: list[Trajectory]) -> list[Any]:
    """What all of them were asked, once."""
    for one in responses:
        start = one.start if one.start is not None else 0
        before = [t for t in rows_of(one.tokens) if t["position"] < start]
        if before:
            return [token_view.prompt(before)]
    return []


def _column(name: str, response: Trajectory, query: Query) -> html.Section:
    row = response.about
    title = html.H2(html.A(f"Response {title_of(row)}", href=here(name, response.key, query)))
    tokens = response.tokens[response.tokens["position"] >= (response.start or 0)]
    side = f"r{response.key.rank}-{response.key.response_id}-"
    head = [title, *facts_of(row)]
    return column(name, replace(response, tokens=tokens), query, side, head, 0, 0)
