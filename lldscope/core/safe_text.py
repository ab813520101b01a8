"""Untrusted text made visible: control and direction characters are shown as symbols."""

from __future__ import annotations

import re
import unicodedata

# The beginning of a formula (https://owasp.org/www-community/attacks/CSV_Injection).
FORMULA = r"^[=+\-@\t\r]"

_EXCEPTION = re.compile(r"[\w.]+(?:Error|Exception|Exit|Interrupt|Warning)\b")
_STEPS = re.compile(
    r"(?<![-\w/])steps?(?= \d)|(?<=[\d–] )steps?\b|(?<=last )steps?\b|(?<=first )steps?\b"
    r"|(?<=these )steps\b|(?<=one )step\b|(?<=few )steps\b"
)
_NAMED = {"\t": "→", "\r": "␍", "\x7f": "␡"}


def escape_control(text: object, lines: bool = False) -> str:
    """Text with control characters replaced by their symbols, other invisible ones by ⟨U+…⟩.

    A line feed becomes ↵, or, with `lines`, ↵ and a new line.
    """
    return "".join(_escape(c, lines) for c in str(text))


def counted_in(unit: str, text: str) -> str:
    """Replace the word "step" in a sentence if something else was counted, such as rows."""
    return _STEPS.sub(lambda m: unit if m[0] == "steps" else unit[:-1], text)


def as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def in_one_line(text: str) -> str:
    """One line for a text of several: the last line of a traceback (the exception), otherwise the
    first."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        return text.strip()
    exceptions = [line for line in lines if _EXCEPTION.match(line)]
    is_traceback = any(line.startswith(("Traceback ", '  File "')) for line in lines)
    return (exceptions[-1] if is_traceback and exceptions else lines[0]).strip()


def _escape(c: str, lines: bool) -> str:
    if c == "\n":
        return "↵\n" if lines else "↵"
    if c in _NAMED:
        return _NAMED[c]
    if ord(c) < 0x20:
        return chr(0x2400 + ord(c))
    return f"⟨U+{ord(c):04X}⟩" if is_invisible(c) else c


def is_invisible(c: str) -> bool:
    """Whether a character is invisible or changes how others look: control and direction
    characters, surrogates, private, unassigned and line-separator characters."""
    return unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
