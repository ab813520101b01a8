"""Numbers for people who read pages: a true minus sign, and a dash where nothing was measured.

Terminals, messages and JSON keep the hyphen, which programs and keyboards know.
"""

from __future__ import annotations

import re

MINUS = "−"
# A hyphen before a number that begins there, or in its exponent; not in a name, date or range.
_HYPHEN = re.compile(r"(?<![^\W_])(?<![_.)\]-])-(?=\.?\d)|(?<=\de)-(?=\d)")


def true_minus(text: str) -> str:
    """A sentence with numbers in it, as pages show it."""
    return _HYPHEN.sub(MINUS, text)


def number(value: float | None, digits: int = 3) -> str:
    """So many significant digits; an en dash for None."""
    return "–" if value is None else true_minus(f"{value:,.{digits}g}")


def short(value: float, digits: int = 3) -> str:
    """For messages: so many significant digits, and up to a million all before the point."""
    form = ",.0f" if 10**digits <= abs(value) < 1e6 else f".{digits}g"
    return f"{value:{form}}"


def signed(value: float, form: str = ".3g") -> str:
    """A difference: plus or minus before it, in the given form."""
    return true_minus(f"{value:+{form}}")
