"""The post-mortem as one HTML file that opens from disk. It loads nothing and runs nothing: there
is no script in it, and its policy allows none. The template escapes whatever comes from a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.numbers import number, signed
from ..core.palette import BLUE, DARK, LIGHT, VERMILLION, Sign, variables
from ..core.safe_text import escape_control
from .blocks import Document, Table
from .losses import Response

if TYPE_CHECKING:
    from jinja2 import Template

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
SHORT, LONG = 20, 40  # characters of the longest cell of a column
STRONG = 2.0  # nats that a token must lose or gain for the full colour

_STYLE = (
    f".lldscope{{color-scheme:light;{variables(LIGHT)}}}"
    "@media screen and (prefers-color-scheme:dark)"
    f"{{.lldscope{{color-scheme:dark;{variables(DARK)}}}}}"
    + Path(__file__).with_name("report.css").read_text(encoding="utf-8")
)


def html(content: Document) -> str:
    """The whole page; whatever comes from a run is escaped and made visible."""
    return _template().render(content=content, policy=POLICY, style=_STYLE, whole=True)


def fragment(content: Document) -> str:
    """The beginning of a document as part of another page."""
    return _template().render(content=content, policy=POLICY, style=_STYLE, whole=False)


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True,
    )
    environment.filters |= {
        "columns": _columns,
        "kind": lambda block: type(block).__name__,
        "number": number,
        "safe_text": escape_control,
        "signed": signed,
        "spans": lambda response, shared: list(_spans(response, shared)),
        "tint": _tint,
    }
    return environment.get_template("report.html.j2")


def _columns(table: Table) -> list[str]:
    """The class of each column: numbers to the right; text without line breaks if it is short, and
    wide if it is long."""

    def look(i: int) -> str:
        cells = [row[i] for row in table.rows]
        texts = [c if isinstance(c, str) else c.word for c in cells if isinstance(c, str | Sign)]
        if len(texts) < len(cells):
            return "strip"
        most = max(map(len, texts))
        return "right" if i in table.right else (
            "long" if most > LONG else "short" if most <= SHORT else ""
        )

    return [look(i) for i in range(len(table.head))]


def _spans(response: Response, shared: int) -> Iterator[dict[str, str]]:
    """The pieces of a response; one that reaches beyond the shared beginning is two."""
    at = 0
    for piece in response.pieces:
        same = max(0, min(len(piece.text), shared - at))
        at += len(piece.text)
        measured = piece.delta is not None and piece.delta == piece.delta
        delta = piece.delta if measured and piece.delta is not None else 0.0
        title = f"Δ {signed(delta, '.3f')} nats, action {piece.action_index}" if measured else ""
        for text, name in ((piece.text[:same], "same"), (piece.text[same:], "")):
            if text:
                tool = "tool" if piece.action_index is None else ""
                yield {
                    "text": escape_control(text, lines=True),
                    "classes": " ".join(filter(None, (name, tool))),
                    "style": _tint(delta) if abs(delta) >= 0.05 else "",
                    "title": title,
                }


def _tint(delta: float) -> str:
    """Vermillion and bold for a loss, blue for a gain; the larger, the stronger."""
    strength = round(12 + 58 * min(1.0, abs(delta) / STRONG))
    color = VERMILLION if delta < 0 else BLUE
    bold = ";font-weight:700" if delta <= -STRONG / 2 else ""
    return f"background:color-mix(in srgb,{color} {strength}%,transparent){bold}"
