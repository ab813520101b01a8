"""The post-mortem as one HTML file that opens from disk. It loads nothing and runs nothing: there
is no script in it, and its policy allows none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from ..core.numbers import number, signed
from ..core.palette import BLUE, DARK, LIGHT, VERMILLION, Sign, variables
from ..core.safe_text import escape_control
from . import charts, timeline
from .arms import charts as arm_charts
from .blocks import Block, Example, Facts, Heading, Items, Paragraph, Picture, Table
from .document import document

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
SHORT, WORDY = 20, 40  # characters of the longest cell of a column
STRONG = 2.0  # nats that a token must lose or gain for the full colour

_STYLE = (
    f":root{{color-scheme:light;{variables(LIGHT)}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{variables(DARK)}}}}}"
    + Path(__file__).with_name("report.css").read_text(encoding="utf-8")
)


def html(facts: Facts) -> str:
    """The whole page; whatever comes from a run is escaped and made visible."""
    told = document(facts)
    body = "".join(map(_block, told.blocks))
    name = _safe(told.title)
    about = "".join(f"<p>{_sign(sign)} {_safe(place)}</p>" for sign, place in told.about)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{name}</title><style>{_STYLE}</style></head>'
        f"<body><main><header><h1>{name}</h1>{about}</header>{body}"
        f"<footer>{_safe(told.footer)}</footer></main></body></html>\n"
    )


def _safe(text: object) -> str:
    return escape(escape_control(text))


def _sign(sign: Sign) -> str:
    style = f"background:{sign.color};color:{sign.ink}"
    return f'<span class="sign" style="{style}">{sign.shape} {sign.word}</span>'


def _block(block: Block) -> str:
    match block:
        case Heading(text):
            return f'<h2 id="{re.sub("[^a-z]+", "-", text.lower())}">{_safe(text)}</h2>'
        case Paragraph(text):
            return f"<p>{_safe(text)}</p>"
        case Items(items, ordered):
            tag, look = ("ol", ' class="summary"') if ordered else ("ul", "")
            return f"<{tag}{look}>{''.join(f'<li>{_safe(item)}</li>' for item in items)}</{tag}>"
        case Table():
            return _table(block)
        case Picture():
            return _picture(block)
        case Example():
            return _example(block.facts, block.shared)


def _picture(picture: Picture) -> str:
    of_arms = "arms" in picture.facts
    if picture.kind == "timeline":
        drawn = timeline.of_arms if of_arms else timeline.of_run
        return f'<div class="scroll timeline" tabindex="0">{drawn(picture.facts)}</div>'
    figures = arm_charts.charts if of_arms else charts.charts
    return f'<div class="charts">{"".join(figures(picture.facts))}</div>'


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    side = [_column(table, i) for i in range(len(table.head))]
    head = "".join(
        f'<th scope="col"{s}>{_safe(c)}</th>' for c, s in zip(table.head, side, strict=True)
    )
    rows = "".join(
        f"<tr>{''.join(f'<td{s}>{_cell(c)}</td>' for c, s in zip(row, side, strict=True))}</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_safe(table.caption)}">'
        "<table>"
        f"<caption>{_safe(table.caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _column(table: Table, i: int) -> str:
    """A column of numbers stands right; of words, it is kept whole if short and wide if long."""
    if i in table.right:
        return ' class="right"'
    most = max(len(c) if isinstance(c, str) else len(c.word) for c in (r[i] for r in table.rows))
    return ' class="long"' if most > WORDY else ' class="short"' if most <= SHORT else ""


def _cell(cell: str | Sign) -> str:
    return _sign(cell) if isinstance(cell, Sign) else _safe(cell)


def _example(x: Mapping[str, Any], both: str) -> str:
    shared = x["shared_characters"]
    source = f", {x['data_source']}" if x["data_source"] else ""
    head = f"Step {x['step']}, group {x['group_id']}{source}: Δ {number(x['delta'])} nats"
    asked = f"<p>Asked: {_safe(x['correct']['prompt'])}</p>" if x["correct"]["prompt"] else ""
    told = f"<p>{_safe(both)}</p>" if both else ""
    columns = [_words("Correct, lost likelihood", x["correct"], shared or 0)]
    if x["wrong"]:
        columns.append(_words("Wrong, of the same group", x["wrong"], shared or 0))
    return f'<h3>{_safe(head)}</h3>{asked}{told}{_SCALE}<div class="pair">{"".join(columns)}</div>'


def _words(heading: str, response: Mapping[str, Any], shared: int) -> str:
    parts, at = [], 0
    for piece in response["pieces"]:
        text = piece["text"]
        same = max(0, min(len(text), shared - at))
        parts += [_span(text[:same], piece, True), _span(text[same:], piece, False)]
        at += len(text)
    cut = f"<p>… and {response['cut']:,} more, not shown.</p>" if response["cut"] else ""
    name = f"{heading} (response {response['response_id']})"
    return (
        f'<section class="words"><h4>{_safe(name)}</h4><pre>{"".join(parts)}</pre>{cut}</section>'
    )


def _span(text: str, piece: Mapping[str, Any], same: bool) -> str:
    if not text:
        return ""
    look = ["same"] if same else []
    if piece["action_index"] is None:
        look.append("tool")
    css = f' class="{" ".join(look)}"' if look else ""
    delta = piece["delta"]
    title, style = "", ""
    if isinstance(delta, int | float) and delta == delta:
        title = f' title="Δ {signed(delta, ".3f")} nats, action {piece["action_index"]}"'
        if abs(delta) >= 0.05:
            style = f' style="{_tint(delta)}"'
    return f"<span{css}{style}{title}>{escape(escape_control(text, lines=True))}</span>"


def _tint(delta: float) -> str:
    """Lost is vermillion and bold, gained is blue; the stronger, the more."""
    strength = round(12 + 58 * min(1.0, abs(delta) / STRONG))
    color = VERMILLION if delta < 0 else BLUE
    bold = ";font-weight:700" if delta <= -STRONG / 2 else ""
    return f"background:color-mix(in srgb,{color} {strength}%,transparent){bold}"


_SCALE = (
    '<p class="scale">Δ per token: '
    + " ".join(f'<i style="{_tint(d)}">{signed(d, "g")} nats</i>' for d in (-2.0, -0.5, 0.5, 2.0))
    + "</p>"
)
