"""A response as turns of tokens: Δ in colour and bars, tool text grey, numbers on hover and focus.

Text comes from a model and is untrusted: it is made visible, cut where it is long, and escaped.
Every token is an option of a list box, so that keys and screen readers reach its numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from json import dumps
from typing import Any

from dash import html

from lldscope.core.numbers import number, signed
from lldscope.core.safe_text import escape_control
from lldscope.core.terminal import visible
from lldscope.explore.trajectories import MOST_TOKENS, Trajectory, rows_of

from ..figures import delta_colors as deltas
from .frame import attrs

PROMPT_SHOWN = 400  # characters of the end of a prompt
TOOL_SHOWN = 6000  # characters of one tool answer
STRONG_ACTION = 4.0  # nats that an action must lose or gain for the full colour


def turns(response: Trajectory, side: str, mark: int | None, shared: int) -> list[Any]:
    """Prompt, actions and tool text in order. `side` begins the ids of its tokens, of which the
    address names that at position `mark`; `shared` own tokens begin alike in both responses."""
    tokens = rows_of(response.tokens)
    actions = {a["action_index"]: a for a in response.actions}
    places = (i for i, token in enumerate(tokens) if token["action_index"] is not None)
    start = next(places, len(tokens))
    before, rest = tokens[:start], tokens[start:]
    alike = {t["position"] for t in rest[:shared]}
    fork = rest[shared]["position"] if 0 < shared < len(rest) else None
    reachable = [t["position"] for t in rest if t["action_index"] is not None]
    first = mark if mark in reachable else next(iter(reachable), None)
    parts: list[Any] = [prompt(before)] if before else []
    for index, run in groupby(rest, key=lambda t: t["action_index"]):
        group = list(run)
        if index is None:
            parts.append(_tool(group, fork))
        else:
            parts.append(_action(group, actions.get(index), index, side, alike, fork, first))
    if len(tokens) == MOST_TOKENS:
        parts.append(html.P(f"The first {MOST_TOKENS:,} tokens are shown.", className="note"))
    return parts


def prompt(tokens: list[dict[str, Any]]) -> html.Div:
    """The end of the question."""
    text = "".join(t["text"] or "▯" for t in tokens)
    cut = "… " if len(text) > PROMPT_SHOWN else ""
    return html.Div(
        [html.Span("asked", className="key"), cut + escape_control(text[-PROMPT_SHOWN:].strip())],
        className="prompt",
    )


def _tool(tokens: list[dict[str, Any]], fork: int | None) -> html.Div:
    """What the policy did not write."""
    text = "".join(t["text"] or "▯" for t in tokens)
    more = f" … and {len(text) - TOOL_SHOWN:,} more characters" if len(text) > TOOL_SHOWN else ""
    inside = [t for t in tokens if t["position"] == fork]
    label: list[Any] = [
        html.Span("tool text", className="key"),
        f"{len(tokens):,} {'token' if len(tokens) == 1 else 'tokens'}, not trained on",
    ]
    body = escape_control(text[:TOOL_SHOWN].strip(), lines=True) + more
    parts: list[Any] = [html.P(label, className="tool-head"), body]
    if inside:
        parts.append(_FORK)
    return html.Div(parts, className="tool")


def _action(
    tokens: list[dict[str, Any]],
    action: dict[str, Any] | None,
    index: int,
    side: str,
    alike: set[int],
    fork: int | None,
    first: int | None,
) -> html.Section:
    text: list[list[Any]] = []
    for token in tokens:
        if token["position"] == fork:
            text.append([_DIFFER, None, "fork"])
        text.append(_token(token, side, token["position"] in alike, first))
    # One component for all of an action's tokens: one for each would cost a second per thousand.
    box = html.Div(
        className="toks", role="listbox",
        **attrs(aria_label=f"tokens of action {index}", data_tokens=dumps(text)),
    )
    return html.Section([action_head(action, index), box], className="turn")


_DIFFER = "▸ from here on they differ"
_FORK = html.Span(_DIFFER, className="fork")


def _token(token: dict[str, Any], side: str, same: bool, first: int | None) -> list[Any]:
    """A token's data for the browser: text, label, class, strength, id, in the order of Tab."""
    names = ("tok", "same" if same else "", "odd" if token["not_finite"] else "")
    style = deltas.tint(token["delta"], deltas.STRONG_TOKEN, *names, faint=deltas.FAINT)
    position = token["position"]
    return [
        text_of(token),
        numbers_of(token),
        style["className"],
        style.get("style", {}).get("--w"),
        f"{side}{position}",
        position == first,
    ]


def text_of(token: dict[str, Any]) -> str:
    """The token's text made visible; a long text is cut and marked as cut."""
    if token["text"] is None:
        return f"▯{token['token_id']}" if token["token_id"] is not None else "▯"
    text = escape_control(token["text"], lines=True)
    over = token["characters"] > len(token["text"])
    return f"{text} … ({token['characters']:,} characters)" if over else text or "∅"


def numbers_of(token: dict[str, Any]) -> str:
    """The numbers of a token that hover and focus show."""
    text = visible(escape_control(token["text"] or "no text"), 60)
    if token["not_finite"]:
        likelihood = f"not finite: {token['not_finite']}"
    elif token["logp_old"] is None and token["logp_post"] is None:
        likelihood = "log π not measured"
    else:
        likelihood = (
            f"Δ {_or(token['delta'], signed)} nats · log π old {_or(token['logp_old'], number)}, "
            f"post {_or(token['logp_post'], number)}"
        )
    if token["logp_behaviour"] is not None:
        likelihood += f" · log π engine {number(token['logp_behaviour'])}"
    entropy = f"entropy {_or(token['entropy'], number)} nats"
    where = f"position {token['position']}, action {token['action_index']}"
    return f"“{text}” · {likelihood} · {entropy} · {where}"


def _or(value: float | None, form: Callable[[float], str]) -> str:
    return "not measured" if value is None else form(value)


def action_head(action: dict[str, Any] | None, index: int) -> html.Header:
    """The head of an action: turn, kind, and the change of its likelihood."""
    name = [html.Strong(f"action {index}")]
    if action is None:
        return html.Header([*name, html.Span("no row of this action was recorded")])
    kind = html.Span(visible(action["kind"] or "unknown kind", 20), className="pill")
    style = deltas.tint(action["delta"], STRONG_ACTION, "delta")
    facts = [
        "" if action["n_tokens"] is None else f"{action['n_tokens']:,} tokens",
        f"log π {number(action['logp_old'])} → {number(action['logp_post'])}",
        "" if action["entropy"] is None else f"entropy {number(action['entropy'])}/token",
        "tool failed" if action["tool_ok"] is False else "",
        "LLDS gate open" if action["llds_gate"] else "",
    ]
    text = " · ".join(f for f in facts if f)
    delta = html.Span(f"Δ {deltas.nats(action['delta'])}", **style)
    return html.Header([*name, kind, delta, html.Span(text, className="quiet")])


def without_tokens(item: Trajectory) -> list[Any]:
    """Actions with their Δ, and the recorded text, of a response without recorded tokens."""
    text = "No tokens of this response were recorded; Δ is shown per action."
    if all(a["delta"] is None for a in item.actions):
        text = "No tokens of this response were recorded, and it was not scored after the update."
    heads = [action_head(action, action["action_index"]) for action in item.actions]
    parts: list[Any] = [html.P(text, className="note")]
    parts += [html.Section(head, className="turn") for head in heads]
    if item.text is not None:
        more = item.text_characters - len(item.text)
        end = f" … and {more:,} more characters" if more > 0 else ""
        parts.append(html.P("The whole response as it was recorded:", className="note"))
        parts.append(html.Div(escape_control(item.text, lines=True) + end, className="toks plain"))
    return parts
