"""The post-mortem as one HTML file that opens from disk. It loads nothing and runs nothing: there
is no script in it, and its policy allows none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..core.numbers import number, signed
from ..core.palette import BLUE, DARK, LIGHT, VERMILLION, Sign, variables
from ..core.safe_text import escape_control
from .arms.facts import Comparison
from .blocks import Block, Box, Cell, Heading, Items, Paragraph, Picture, Table
from .document import document
from .examples import Example, Piece, Response
from .facts import PostMortem

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
SHORT, LONG = 20, 40  # characters of the longest cell of a column
STRONG = 2.0  # nats that a token must lose or gain for the full colour

_STYLE = (
    f":root{{color-scheme:light;{variables(LIGHT)}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{variables(DARK)}}}}}"
    + Path(__file__).with_name("report.css").read_text(encoding="utf-8")
)


def html(facts: PostMortem | Comparison) -> str:
    """The whole page; whatever comes from a run is escaped and made visible."""
    content = document(facts)
    blocks = list(content.blocks)
    ahead = [block for block in blocks if isinstance(block, Box)]
    body = "".join(map(_block, [block for block in blocks if block not in ahead]))
    top = "".join(map(_block, ahead)) + _contents(blocks)
    name = _safe(content.title)
    about = "".join(f"<p>{_sign(sign)} {_safe(place)}</p>" for sign, place in content.about)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{name}</title><style>{_STYLE}</style></head>'
        f"<body><main><header><h1>{name}</h1>{about}</header>{top}{body}"
        f"<footer>{_safe(content.footer)}</footer></main></body></html>\n"
    )


def _contents(blocks: Sequence[Block]) -> str:
    heads = [block.text for block in blocks if isinstance(block, Heading)]
    links = "".join(f'<li><a href="#{_anchor(text)}">{_safe(text)}</a></li>' for text in heads)
    return f'<nav aria-label="contents"><ul>{links}</ul></nav>'


def _anchor(heading: str) -> str:
    return re.sub("[^a-z]+", "-", heading.lower())


def _safe(text: object) -> str:
    return escape(escape_control(text))


def _sign(sign: Sign) -> str:
    style = f"background:{sign.color};color:{sign.ink}"
    return f'<span class="sign" style="{style}">{sign.shape} {sign.word}</span>'


def _block(block: Block) -> str:
    match block:
        case Box(rows):
            told = "".join(f"<dt>{_safe(k)}</dt><dd>{_safe(v)}</dd>" for k, v in rows)
            return f'<dl class="box">{told}</dl>'
        case Heading(text):
            return f'<h2 id="{_anchor(text)}">{_safe(text)}</h2>'
        case Paragraph(text):
            return f"<p>{_safe(text)}</p>"
        case Items(items, ordered):
            tag, css = ("ol", ' class="summary"') if ordered else ("ul", "")
            return f"<{tag}{css}>{''.join(f'<li>{_safe(item)}</li>' for item in items)}</{tag}>"
        case Table():
            return _table(block)
        case Picture("timeline", drawn):
            return f'<div class="scroll timeline" tabindex="0">{drawn}</div>'
        case Picture(_, drawn):
            return f'<div class="charts">{drawn}</div>'
        case Example():
            return _example(block)


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    css = [_column(table, i) for i in range(len(table.head))]
    head = "".join(
        f'<th scope="col"{s}>{_safe(c)}</th>' for c, s in zip(table.head, css, strict=True)
    )
    rows = "".join(
        f"<tr>{''.join(f'<td{s}>{_cell(c)}</td>' for c, s in zip(row, css, strict=True))}</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_safe(table.caption)}">'
        "<table>"
        f"<caption>{_safe(table.caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _column(table: Table, i: int) -> str:
    """Numbers to the right; text without line breaks if it is short, and wide if it is long."""
    if i in table.right:
        return ' class="right"'
    most = max(len(c) if isinstance(c, str) else len(c.word) for c in (r[i] for r in table.rows))
    return ' class="long"' if most > LONG else ' class="short"' if most <= SHORT else ""


def _cell(cell: Cell) -> str:
    return _sign(cell) if isinstance(cell, Sign) else _safe(cell)


def _example(x: Example) -> str:
    source = f", {x.data_source}" if x.data_source else ""
    head = f"Step {x.step}, group {x.group_id}{source}: Δ {number(x.delta)} nats"
    question = f"<p>Question: {_safe(x.correct.prompt)}</p>" if x.correct.prompt else ""
    prefix = f"<p>{_safe(x.shared)}</p>" if x.shared else ""
    columns = _response("Correct, lost likelihood", x.correct, x.shared_characters or 0)
    if x.wrong:
        columns += _response("Incorrect, same group", x.wrong, x.shared_characters or 0)
    return f'<h3>{_safe(head)}</h3>{question}{prefix}{_SCALE}<div class="pair">{columns}</div>'


def _response(heading: str, response: Response, shared: int) -> str:
    parts, at = [], 0
    for piece in response.pieces:
        same = max(0, min(len(piece.text), shared - at))
        parts += [_span(piece.text[:same], piece, True), _span(piece.text[same:], piece, False)]
        at += len(piece.text)
    cut = f"<p>… and {response.cut:,} more, not shown.</p>" if response.cut else ""
    name = f"{heading} (response {response.response_id})"
    return (
        f'<section class="words"><h4>{_safe(name)}</h4><pre>{"".join(parts)}</pre>{cut}</section>'
    )


def _span(text: str, piece: Piece, same: bool) -> str:
    if not text:
        return ""
    classes = ["same"] * same + ["tool"] * (piece.action_index is None)
    css = f' class="{" ".join(classes)}"' if classes else ""
    title, style = "", ""
    if piece.delta is not None and piece.delta == piece.delta:
        title = f' title="Δ {signed(piece.delta, ".3f")} nats, action {piece.action_index}"'
        if abs(piece.delta) >= 0.05:
            style = f' style="{_tint(piece.delta)}"'
    return f"<span{css}{style}{title}>{escape(escape_control(text, lines=True))}</span>"


def _tint(delta: float) -> str:
    """Vermillion and bold for a loss, blue for a gain; the larger, the stronger."""
    strength = round(12 + 58 * min(1.0, abs(delta) / STRONG))
    color = VERMILLION if delta < 0 else BLUE
    bold = ";font-weight:700" if delta <= -STRONG / 2 else ""
    return f"background:color-mix(in srgb,{color} {strength}%,transparent){bold}"


_SCALE = (
    '<p class="scale">Δ per token: '
    + " ".join(f'<i style="{_tint(d)}">{signed(d, "g")} nats</i>' for d in (-2.0, -0.5, 0.5, 2.0))
    + "</p>"
)
