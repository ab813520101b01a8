"""The post-mortem as one HTML file that opens from disk. It loads nothing and runs nothing: there
is no script in it, and its policy allows none. The template escapes whatever comes from a run.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.numbers import number
from ..core.palette import DARK, LIGHT, Sign, variables
from ..core.safe_text import escape_control
from .blocks import Document, Table

if TYPE_CHECKING:
    from jinja2 import Template

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
SHORT, LONG = 20, 40  # characters of the longest cell of a column

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
