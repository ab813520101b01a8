"""The post-mortem as Markdown, for reviews and issues; without pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..core.numbers import number
from ..core.palette import Sign
from ..core.safe_text import escape_control
from .arms.facts import Comparison
from .blocks import Block, Box, Cell, Heading, Items, Paragraph, Picture, Table
from .document import document
from .examples import Example
from .facts import PostMortem

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")  # to Markdown, or to HTML inside it


def markdown(facts: PostMortem | Comparison) -> str:
    content = document(facts)
    about = [f"{sign.shape} **{sign.word}** {_safe(place)}" for sign, place in content.about]
    blocks = [text for block in content.blocks if (text := _block(block))]
    parts = [f"# {_safe(content.title)}", *about, *blocks, "---", _safe(content.footer)]
    return "\n\n".join(parts) + "\n"


def _safe(text: object) -> str:
    return _SPECIAL.sub(r"\\\1", escape_control(text))


def _block(block: Block) -> str:
    match block:
        case Box(rows):
            return "\n".join(f"- **{_safe(label)}:** {_safe(text)}" for label, text in rows)
        case Heading(text):
            return f"## {_safe(text)}"
        case Paragraph(text):
            return _safe(text)
        case Items(items, ordered):
            return "\n".join(
                f"{f'{i}.' if ordered else '-'} {_safe(t)}" for i, t in enumerate(items, 1)
            )
        case Table():
            return _table(block)
        case Example():
            return _example(block)
        case Picture():
            return ""


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    rule = ["--:" if i in table.right else "---" for i in range(len(table.head))]
    lines = [_row(table.head), f"| {' | '.join(rule)} |", *map(_row, table.rows)]
    return f"**{_safe(table.caption)}**\n\n" + "\n".join(lines)


def _row(cells: Sequence[Cell]) -> str:
    return f"| {' | '.join(_cell(c) for c in cells)} |"


def _cell(cell: Cell) -> str:
    return f"{cell.shape} {cell.word}" if isinstance(cell, Sign) else _safe(cell)


def _example(x: Example) -> str:
    lines = [f"**Step {x.step}, group {x.group_id}: Δ {number(x.delta)} nats**"]
    if x.correct.prompt:
        lines.append(_quote("question", x.correct.prompt))
    lines.append(_quote("correct", x.correct.text))
    if x.wrong:
        lines.append(_quote("incorrect", x.wrong.text))
    if x.shared:
        lines.append(_safe(x.shared))
    return "\n\n".join(lines)


def _quote(word: str, text: str) -> str:
    """As indented code, which nothing in the text can close."""
    lines = escape_control(text, lines=True).split("\n")
    return f"{word}:\n\n" + "\n".join(f"    {line}" for line in lines)
