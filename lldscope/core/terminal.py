"""Output for a terminal: the console, sparklines, ages, and text that is safe to print."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .safe_text import is_invisible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

UNLIMITED = 100_000  # columns
READABLE = 100  # columns of a paragraph, at most
MOST_CHARACTERS = 300  # of one text from a run

_BARS = "▁▂▃▄▅▆▇█"
_BLANKS = "\n\t\r\u2028\u2029"  # printed as a space
ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?")


def console(*, stderr: bool = False, wide: bool = False, live: bool = False) -> Console:
    """A console that obeys NO_COLOR and prints plain text if its output is not a terminal. `wide`
    tables are never cut to the terminal's width. `live` blocks are redrawn in place and must be
    cut: a wrapped line would stay on the screen."""
    from rich.console import Console

    out = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=not live)
    if wide or not out.is_terminal:
        out.width = UNLIMITED
    return out


def paragraph(out: Console, text: Text | str, indent: int = 0) -> Text:
    """Wrap a text to the terminal, with a hanging indent of two columns; one line if the output is
    not a terminal. A str is escaped."""
    from rich.text import Text

    whole = text if isinstance(text, Text) else Text(plain(text))
    width = min(out.width, READABLE) if out.is_terminal else out.width
    lines = whole.wrap(out, max(width - indent - 2, 20))
    for line in lines:
        line.rstrip()
    return Text(" " * indent) + Text("\n" + " " * (indent + 2)).join(lines)


def plain(text: object) -> str:
    """Text of a run, escaped for printing: no escape sequences, control or direction characters."""
    visible = ESCAPES.sub("", str(text))
    return "".join(" " if c in _BLANKS else "�" if is_invisible(c) else c for c in visible)


def visible(text: object, most: int = MOST_CHARACTERS) -> str:
    """Text of a run as one short line without control or direction characters."""
    whole = str(text)
    head = plain(whole[:most])
    return head if len(whole) <= most else f"{head} … ({len(whole):,} characters)"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Values as bars between their minimum and maximum, means of equal ranges; a blank for NaN."""
    groups = _means(values, width)
    finite = [v for v in groups if math.isfinite(v)]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    return "".join(
        " " if not math.isfinite(v) else _BARS[round((v - low) / span * 7) if span else 3]
        for v in groups
    )


def _means(values: Sequence[float], width: int) -> list[float]:
    """At most `width` means over equal ranges of the series."""
    size = max(1, math.ceil(len(values) / width))
    groups = (values[start : start + size] for start in range(0, len(values), size))
    finite = ([v for v in group if math.isfinite(v)] for group in groups)
    return [sum(group) / len(group) if group else math.nan for group in finite]


def age(seconds: float | None) -> str:
    """A duration in its largest unit: 3 s, 12 min, 5 h, 9 d."""
    if seconds is None:
        return "–"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
