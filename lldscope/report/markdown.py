"""The post-mortem as Markdown, for reviews and issues; without pictures."""

from __future__ import annotations

import re
from typing import Any

from ..core.numbers import number
from ..core.palette import Sign
from ..core.safe_text import escape_control
from .blocks import Block, Example, Facts, Heading, Items, Paragraph, Picture, Table
from .document import document

_MEANT = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")  # what Markdown, or HTML inside it, would obey


def markdown(facts: Facts) -> str:
    told = document(facts)
    about = [f"{sign.shape} **{sign.word}** {_safe(place)}" for sign, place in told.about]
    blocks = [text for block in told.blocks if (text := _block(block))]
    return (
        "\n\n".join([f"# {_safe(told.title)}", *about, *blocks, "---", _safe(told.footer)]) + "\n"
    )


def _safe(text: object) -> str:
    return _MEANT.sub(r"\\\1", escape_control(text))


def _block(block: Block) -> str:
    match block:
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
            return _example(block.facts, block.shared)
        case Picture():
            return ""


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    rule = ["--:" if i in table.right else "---" for i in range(len(table.head))]
    lines = [_row(table.head), f"| {' | '.join(rule)} |", *map(_row, table.rows)]
    return f"**{_safe(table.caption)}**\n\n" + "\n".join(lines)


def _row(cells: Any) -> str:
    return f"| {' | '.join(_cell(c) for c in cells)} |"


def _cell(cell: str | Sign) -> str:
    return f"{cell.shape} {cell.word}" if isinstance(cell, Sign) else _safe(cell)


def _example(x: Any, shared: str) -> str:
    lines = [f"**Step {x['step']}, group {x['group_id']}: Δ {number(x['delta'])} nats**"]
    if x["correct"]["prompt"]:
        lines.append(_quote("asked", x["correct"]["prompt"]))
    for word in ("correct", "wrong"):
        if x[word]:
            lines.append(_quote(word, "".join(p["text"] for p in x[word]["pieces"])))
    if shared:
        lines.append(_safe(shared))
    return "\n\n".join(lines)


def _quote(word: str, text: str) -> str:
    """A fence that nothing in the text can close: indented code."""
    lines = escape_control(text, lines=True).split("\n")
    return f"{word}:\n\n" + "\n".join(f"    {line}" for line in lines)
