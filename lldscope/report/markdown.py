"""A report as Markdown, for reviews and issues; charts are in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..core.numbers import number
from ..core.palette import Sign
from ..core.safe_text import escape_control
from .blocks import (
    Block,
    Box,
    Cell,
    Charts,
    Code,
    Document,
    Items,
    Paragraph,
    Strip,
    Table,
    Tokens,
)
from .losses import WorstToken

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")  # to Markdown, or to HTML inside it


def markdown(content: Document) -> str:
    """The whole report; whatever comes from a run is escaped and made visible."""
    about = [f"{sign.shape} **{sign.word}** {_safe(place)}" for sign, place in content.about]
    sections = []
    for section in content.sections:
        sections += [f"## {_safe(section.heading)}"] if section.heading else []
        sections += [text for block in section.blocks if (text := _block(block))]
    parts = [f"# {_safe(content.title)}", *about, *sections, "---", _safe(content.footer)]
    return "\n\n".join(parts) + "\n"


def _safe(text: object) -> str:
    return _SPECIAL.sub(r"\\\1", escape_control(text))


def _block(block: Block) -> str:
    match block:
        case Box(rows):
            return "\n".join(f"- **{_safe(label)}:** {_safe(text)}" for label, text in rows)
        case Paragraph(text):
            return _safe(text)
        case Items(items):
            return "\n".join(f"- {_safe(item)}" for item in items)
        case Code(lines):
            return "\n".join(f"    {line}" for line in lines)
        case Table():
            return _table(block)
        case Charts(drawings):
            return "\n".join(f"- {_safe(drawing.words)}" for drawing in drawings)
        case Tokens(tokens):
            return "\n\n".join(map(_token, tokens))


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    rule = ["--:" if i in table.right else "---" for i in range(len(table.head))]
    rows = [row for row in table.rows if any(map(_cell, row[1:]))]  # a scale says nothing here
    lines = [_row(table.head), f"| {' | '.join(rule)} |", *map(_row, rows)]
    return f"**{_safe(table.caption)}**\n\n" + "\n".join(lines)


def _row(cells: Sequence[Cell]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(cell: Cell) -> str:
    match cell:
        case Sign():
            return f"{cell.shape} {cell.word}"
        case Strip():
            return _safe(cell.words)
        case _:
            return _safe(cell)


def _token(token: WorstToken) -> str:
    """The token in its text, as indented code, which nothing in the text can close."""
    text = escape_control(f"{token.before}⟦{token.text}⟧{token.after}", lines=True)
    code = "\n".join(f"    {line}" for line in text.split("\n"))
    return f"{number(token.delta)} nats, {token.place}:\n\n{code}"
