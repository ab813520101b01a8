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
    shared_prefix,
)

from ..data.snapshot import Snapshot
from ..figures import delta_colors as deltas
from . import components, token_view
from .batch import golden_of, parts_of_reward
from .frame import Query, address, attrs, crumbs, message_page, text, way, whole
from .responses_page import STRONG, class_of, title_of

MOST_NAMED = 6  # tokens that are named as the greatest losses


def trajectory_page(snapshot: Snapshot, query: Query) -> html.Div:
    """The response that the address names, or words if it does not exist. Raises LldscopeError if
    the run cannot be read."""
    name = snapshot.name
    step, number = whole(query, "step"), whole(query, "id", -(2**31))
    run, response = snapshot.run, None
    if step is not None and number is not None:
        response = read_trajectory(run, Key(step, whole(query, "rank") or 0, number))
    if response is None:
        what = "The address must name the step and the id of a response that the run holds."
        return message_page("There is no such response", what)
    pair = paired_with(run, response)
    other = pair and read_trajectory(run, pair, response.group)
    shared = shared_prefix(response.tokens, other.tokens) if other else 0
    columns = [_column(name, response, query, "t", shared)]
    if other is not None:
        columns.append(_column(name, other, query, "b", shared))
    return html.Div(
        [
            _head(name, snapshot.title, response),
            _group(name, response, other),
            _LEGEND,
            _pairing(response, other, shared),
            _losses(name, response),
            html.Div(columns, className="pair"),
            _STATUS,
        ],
        style=deltas.COLORS,
        className="trajectory",
    )


def _head(name: str, label: str, response: Trajectory) -> html.Header:
    row, key = response.about, response.key
    facts = [
        ("Δ", f"{deltas.nats(row['delta'], row['not_finite'])} nats"),
        ("reward", number(row["reward"])),
        ("advantage", number(row["advantage"])),
        ("log π per token", number(row["logp"])),
        ("tokens", components.count(row["n_tokens"])),
        ("actions", f"{len(response.actions)}"),
        ("data source", visible(row["data_source"] or "–", 60)),
        *((visible(n, 30), number(v)) for n, v in parts_of_reward(row["reward_parts"])),
    ]
    if gold := golden_of(row["golden"]):
        facts.append(("gold answer", visible(gold, 160)))
    content: list[Any] = [class_of(row)]
    content += [components.fact(name, value) for name, value in facts]
    if row["truncated"]:
        content.append(html.Span("cut by a length limit", className="pill"))
    of_step = address("responses", name, first=key.step, last=key.step)
    way = crumbs(name, label, (f"Responses of step {key.step:,}", of_step))
    title = f"Response {title_of(row)} of step {key.step:,}"
    status = html.Div(content, className="status")
    return components.page_head(title, status, above=way, look="response-head")


def _group(name: str, response: Trajectory, other: Trajectory | None) -> html.Div:
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
            href=here(name, key), **deltas.tint(row["delta"], STRONG, *names),
            **attrs(aria_current="page" if now else None),
        ))
    before = here(name, keys[at - 1]) if at else None
    after = here(name, keys[at + 1]) if at + 1 < len(keys) else None
    many = f"{len(keys)} or more" if len(keys) >= MOST_GROUP else f"{len(keys)}"
    label = f"Group {response.about['group_id']}: {many} responses, Δ in nats (· with tokens)"
    return html.Div(
        [html.Span(label, className="key"), way("Previous", before, "["), way("Next", after, "]"),
         html.A("Its batch", href=address("run", name, step=response.key.step),
                className="button"),
         *chips],
        className="group",
    )


def _pairing(response: Trajectory, other: Trajectory | None, shared: int) -> html.P:
    """The response beside this one, and the tokens that both share."""
    if other is None:
        kind = "wrong" if response.about["correct"] else "correct"
        text = f"The group holds no {kind} response to compare with."
    elif len(response.tokens) and len(other.tokens):
        text = f"Identical tokens after the prompt: {shared:,}."
    else:
        text = "Where they diverge is unknown: not both have tokens."
    return html.P(text, className="note")


def _losses(name: str, response: Trajectory) -> html.P:
    """The tokens that lost most, as links: a way to them without a mouse."""
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
                href=here(name, response.key, mark=f"t{token['position']}"),
                **attrs(data_token=f"t{token['position']}"),
            )
        )
    return html.P(parts, className="lost-most")


def _column(name: str, item: Trajectory, query: Query, side: str, shared: int) -> html.Section:
    """A response; `side` begins the ids of its tokens. Its first `shared` own tokens are those of
    the other."""
    row = item.about
    shape = {True: "correct", False: "wrong"}.get(row["correct"], "of unknown class")
    title = f"response {title_of(row)}, {shape}"
    if side == "t":
        head: list[Any] = [html.H2(title[0].upper() + title[1:])]
    else:
        head = [html.H2(f"Beside it: {title}"),
                html.A("Show this one", href=here(name, item.key))]
    head.append(html.Span(f"Δ {deltas.nats(row['delta'], row['not_finite'])} nats",
                          className="quiet"))
    mark = (text(query, "mark") or "").removeprefix(side)
    if len(item.tokens):
        body = token_view.turns(item, side, int(mark) if mark.isdecimal() else None, shared)
    else:
        body = token_view.without_tokens(item)
    return html.Section([html.Header(head), *body], className="card words")


def here(name: str, key: Key, **more: Any) -> str:
    """The address of a response."""
    values = {"step": key.step, "rank": key.rank or None, "id": key.response_id} | more
    return address("response", name, **values)


_SAMPLES = ((-2.0, "≤ −2 lost"), (-0.5, "−0.5"), (0.5, "+0.5"), (2.0, "≥ +2 gained"))
_FULL = deltas.STRONG_TOKEN
_LEGEND = html.P(
    [
        html.Span("Δ log π of a token, nats:", className="key"),
        *(html.Span(words, **deltas.tint(v, _FULL, "tok")) for v, words in _SAMPLES),
        html.Span("tool text", className="tool-sample"),
        html.Span("begins alike", className="same"),
    ],
    className="scale",
)
_STATUS = html.Div(
    "Hover over a token, or reach it with Tab and the arrow keys, for its numbers.",
    id="token-status", role="status", **attrs(aria_live="polite"),
)
