"""How things look on a terminal: colours, sparklines, ages, and text that is safe to print."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Words always stand beside colours, so that neither colour-blind readers nor logs lose anything.
VERDICT_STYLE = {
    "healthy": "green",
    "warning": "yellow",
    "critical": "bold red",
    "stalled": "bold magenta",
    "insufficient": "dim",
}
SEVERITY_STYLE = {"info": "cyan", "warning": "yellow", "critical": "bold red"}
SEVERITY_MARK = {"info": "·", "warning": "▲", "critical": "■"}

UNLIMITED = 100_000  # columns

_BARS = "▁▂▃▄▅▆▇█"
_BLANKS = "\n\t\r\u2028\u2029"  # what moves the cursor on
_HARMLESS = dict.fromkeys(("Cc", "Cf", "Cs", "Co"), "�")  # categories of characters not to print
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?")


def console(*, stderr: bool = False, wide: bool = False, live: bool = False) -> Console:
    """A console that prints plain text when it is not a terminal, and obeys NO_COLOR.

    `wide` tables, and all that do not go to a terminal, are never cut to a width. `live` blocks,
    which are redrawn in place, must be: a line that the terminal wraps would be left behind.
    """
    from rich.console import Console

    out = Console(stderr=stderr, highlight=False, markup=False, soft_wrap=not live)
    if wide or not out.is_terminal:
        out.width = UNLIMITED
    return out


def plain(text: object) -> str:
    """Text from a log made safe to print: no escape sequences, control or direction characters."""
    visible = _ESCAPES.sub("", str(text))
    return "".join(
        _HARMLESS.get(unicodedata.category(c), c) if c not in _BLANKS else " " for c in visible
    )


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The last values as bars between their own minimum and maximum; a blank where none was."""
    groups = _last_groups(values, width)
    known = [v for v in groups if math.isfinite(v)]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    return "".join(
        " " if not math.isfinite(v) else _BARS[round((v - low) / span * 7) if span else 3]
        for v in groups
    )


def _last_groups(values: Sequence[float], width: int) -> list[float]:
    """At most `width` means over equal stretches of the whole series."""
    size = max(1, math.ceil(len(values) / width))
    groups = []
    for start in range(0, len(values), size):
        known = [v for v in values[start : start + size] if math.isfinite(v)]
        groups.append(sum(known) / len(known) if known else math.nan)
    return groups


def age(seconds: float | None) -> str:
    """A duration as people say it: 3 s, 12 min, 5 h, 9 d."""
    if seconds is None:
        return "–"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table; an en dash where nothing was measured."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.{digits}g}"
