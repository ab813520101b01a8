"""The post-mortem as one HTML file that opens from disk. It loads nothing and runs nothing: there
is no script in it, and its policy allows none. The template escapes whatever comes from a run.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.numbers import number
from ..core.palette import DARK, LIGHT, variables
from ..core.safe_text import escape_control
from .blocks import Document

if TYPE_CHECKING:
    from jinja2 import Template

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_STYLE = (
    f".lldscope{{color-scheme:light;{variables(LIGHT)}}}"
    "@media screen and (prefers-color-scheme:dark)"
    f"{{.lldscope{{color-scheme:dark;{variables(DARK)}}}}}"
    + Path(__file__).with_name("report.css").read_text(encoding="utf-8")
)


def html(content: Document, whole: bool = True) -> str:
    """The page, or its beginning as part of another one; whatever comes from a run is escaped and
    made visible."""
    return _template().render(content=content, policy=POLICY, style=_STYLE, whole=whole)


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True,
    )
    environment.filters |= {
        "kind": lambda block: type(block).__name__,
        "number": number,
        "safe_text": escape_control,
    }
    return environment.get_template("report.html.j2")
