"""One response, turn by turn and token by token, beside one of the other class in its group."""

from __future__ import annotations

from typing import Any

from dash import html

from lldscope.core.numbers import number
from lldscope.core.terminal import visible
from lldscope.explore.trajectories import (
    MOST_GROUP,
    Key,
    Trajectory,
    key_of,
    paired_with,
    read_trajectory,
    rows_of,
    same_documents,
    shared_prefix,
)
from lldscope.runs import Run

from ..data.snapshot import Snapshot
from ..figures import delta_colors as deltas
from . import components as parts
from . import token_view
from .frame import message_page
from .links import Query, address, attrs, crumbs, text, way, whole
from .response_columns import STATUS, coloring, column, describe, here, side_by_side
from .responses_page import STRONG, class_of, title_of

MOST_NAMED = 6  # tokens that are named as the greatest losses


def trajectory_page(snapshot: Snapshot, query: Query) -> html.Div:
    """The response the address names, or words if there is none. Raises LldscopeError if the run
    cannot be read."""
    name = snapshot.name
    step, number = whole(query, "step"), whole(query, "id", -(2**31))
    if step is None or number is None:
        return message_page("No response is named", "The address must name a step and an id.")
    key = Key(step, whole(query, "rank") or 0, number)
    run = snapshot.run
    response = read_trajectory(run, key, whole(query, "from") or 0)
    if response is None:
        return message_page(
            "There is no such response", f"The run holds no response {number} at step {step}."
        )
    other = _beside(run, response, query)
    shared = shared_prefix(response.tokens, other.tokens) if other and not response.first else 0
    same = same_documents(response.actions, other.actions) if other else 0
    columns = [_column(name, response, query, "t", shared, same)]
    if other is not None:
        columns.append(_column(name, other, query, "b", shared, same))
    return html.Div(
        [
            _head(name, snapshot.title, response),
            _group(name, response, other, query),
            *coloring(query, [response] if other is None else [response, other]),
            *_pairing(response, other, shared, same),
            _losses(name, response, query),
            html.Div(columns, className="pair"),
            STATUS,
        ],
        style=deltas.COLORS,
        className="trajectory",
    )


def _beside(run: Run, response: Trajectory, query: Query) -> Trajectory | None:
    """The response to show beside: the one asked for if it is of this group, or the nearest."""
    target = whole(query, "beside", -(2**31))
    rank = whole(query, "beside_rank") or 0
    in_group = {key_of(row) for row in response.group} - {response.key}
    key = None if target is None else Key(response.key.step, rank, target)
    if key not in in_group:
        key = paired_with(run, response)
    return None if key is None else read_trajectory(run, key, response.first, response.group)


def _head(name: str, label: str, response: Trajectory) -> html.Header:
    row, key = response.about, response.key
    facts = [
        ("Δ", f"{deltas.nats(row['delta'], row['not_finite'])} nats"),
        ("reward", number(row["reward"])),
        ("advantage", number(row["advantage"])),
        ("log π per token", number(row["logp"])),
        ("tokens", parts.count(row["n_tokens"])),
        ("actions", f"{len(response.actions)}"),
        ("data source", visible(row["data_source"] or "–", 60)),
    ]
    content: list[Any] = [class_of(row)]
    content += [parts.fact(name, value) for name, value in facts]
    if row["truncated"]:
        content.append(html.Span("cut by a length limit", className="pill"))
    of_step = address("responses", name, first=key.step, last=key.step)
    way = crumbs(name, label, (f"Responses of step {key.step:,}", of_step))
    title = f"Response {title_of(row)} of step {key.step:,}"
    status = html.Div(content, className="status")
    return parts.page_head(title, status, above=way, look="response-head")


def _group(name: str, response: Trajectory, other: Trajectory | None, query: Query) -> html.Div:
    """The responses of the group, each a link; previous and next."""
    if response.about["group_id"] is None:
        return html.Div("No group was recorded for this response.", className="group quiet")
    keys = [key_of(row) for row in response.group]
    at = keys.index(response.key)
    beside = None if other is None else other.key
    chips = []
    for row, key in zip(response.group, keys, strict=True):
        now = key == response.key
        names = ("chip", "now" if now else "", "beside" if key == beside else "")
        mark = " ·" if row["has_tokens"] else ""
        shape = {True: "✓", False: "✗"}.get(row["correct"], "?")
        chips.append(html.A(
            f"{title_of(row)} {shape} {deltas.nats(row['delta'], row['not_finite'])}{mark}",
            href=here(name, key, query), **deltas.tint(row["delta"], STRONG, *names),
            **attrs(aria_current="page" if now else None),
        ))
    before = here(name, keys[at - 1], query) if at else None
    after = here(name, keys[at + 1], query) if at + 1 < len(keys) else None
    many = f"{len(keys)} or more" if len(keys) >= MOST_GROUP else f"{len(keys)}"
    label = f"Group {response.about['group_id']}: {many} responses, Δ in nats; · has tokens"
    return html.Div(
        [html.Span(label, className="key"), way("Previous", before, "["), way("Next", after, "]"),
         html.A("Side by side", href=side_by_side(name, response.key, query), className="button"),
         *chips],
        className="group",
    )


def _pairing(
    response: Trajectory, other: Trajectory | None, shared: int, same: int
) -> list[Any]:
    """What stands beside the response, and what they share."""
    kind = "wrong" if response.about["correct"] else "correct"
    if other is None:
        why = "its class is unknown" if response.about["correct"] is None else (
            f"its group holds no {kind} response"
        )
        return [html.P(f"No response to compare with: {why}.", className="note")]
    if response.first:
        return [html.P(f"Both from position {response.first:,} on.", className="note")]
    if len(response.tokens) and len(other.tokens):
        text = _alike(shared)
    else:
        text = _alike_actions(same)
        if not len(other.tokens):
            text = f"No tokens of a {kind} response of this group were recorded. {text}"
    return [html.P(text, className="note")]


def _alike(shared: int) -> str:
    """How many tokens after the prompt are the same in both responses."""
    if not shared:
        return "The two differ from the first token after the prompt on."
    many = "first token is" if shared == 1 else f"first {shared:,} tokens are"
    return f"After the prompt, the {many} the same in both."


def _alike_actions(same: int) -> str:
    if not same:
        return "The two share no first action that brought the same documents."
    many = "first action" if same == 1 else f"first {same} actions"
    return f"The {many} brought the same documents in both."


def _losses(name: str, response: Trajectory, query: Query) -> html.P:
    """The tokens that lost most, as links: the way to them without a mouse."""
    losses = [t for t in rows_of(response.tokens) if t["action_index"] is not None]
    losses = sorted((t for t in losses if (t["delta"] or 0.0) < 0), key=lambda t: t["delta"])
    if not losses:
        return html.P(className="lost-most")
    parts: list[Any] = [html.Span("lost most", className="key")]
    for token in losses[:MOST_NAMED]:
        word = f"{visible(token_view.text_of(token), 24).strip() or '␣'}"
        parts.append(
            html.A(
                [html.Code(word), f" {deltas.nats(token['delta'])}"],
                href=here(name, response.key, query, mark=f"t{token['position']}",
                          beside=text(query, "beside"), from_=response.first or None),
                **attrs(data_token=f"t{token['position']}"),
            )
        )
    return html.P(parts, className="lost-most")


def _column(
    name: str, response: Trajectory, query: Query, side: str, shared: int, same: int
) -> html.Section:
    title = describe(response.about)
    if side == "t":
        head: list[Any] = [html.H2(title[0].upper() + title[1:])]
    else:
        head = [html.H2(f"Beside it: {title}")]
        head.append(html.A("Show this one", href=here(name, response.key, query)))
    return column(name, response, query, side, head, shared, same)
