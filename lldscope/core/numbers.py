"""Numbers as text. Pages show a true minus sign; terminals, messages and JSON keep the hyphen."""

from __future__ import annotations

import math
import re

MINUS = "−"
_PADDED = re.compile(r"e(?:\+|(?=-))(-?)0*(?=\d)")  # an exponent as Python writes it: e+06, e-05
# A hyphen before a number or in its exponent, but not one in a name, date or range.
_HYPHEN = re.compile(r"(?<![^\W_])(?<![_.)\]-])-(?=\.?\d)|(?<=\de)-(?=\d)")


def true_minus(text: str) -> str:
    """Replace the hyphens of negative numbers in a sentence by minus signs, for pages."""
    return _HYPHEN.sub(MINUS, text)


def number(value: float | None, digits: int = 3) -> str:
    """`short`, for pages."""
    return true_minus(short(value, digits))


def short(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits, without an exponent from 0.0001 to a million, and
    otherwise with a plain one (1.5e6, 1e-5). None and NaN, not measured, become an en dash."""
    if value is None or math.isnan(value):
        return "–"
    form = ",.0f" if 10**digits <= abs(value) < 1e6 else f".{digits}g"
    return _PADDED.sub(r"e\g<1>", f"{value:{form}}")


def signed(value: float) -> str:
    """A difference, formatted as by `number`, with its sign."""
    return f"+{number(value)}" if value >= 0 else number(value)


def plural(n: int, noun: str) -> str:
    """A number with its noun: 1 step, 2 steps."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def percent(share: float) -> str:
    """A share as a percentage. It is never rounded to 0 % or 100 %: 0.3 %, 42 %, 99.6 %."""
    digits = 0 if share in (0.0, 1.0) or 0.01 <= share <= 0.99 else 1
    return f"{100 * share:.{digits}f} %"
