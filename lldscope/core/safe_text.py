"""Untrusted text made visible: control and direction characters are shown as symbols."""

from __future__ import annotations

import unicodedata

_NAMED = {"\t": "→", "\r": "␍", "\x7f": "␡"}


def escape_control(text: object, lines: bool = False) -> str:
    """Text with control characters replaced by their symbols, other invisible ones by ⟨U+…⟩.

    A line feed becomes ↵, or, with `lines`, ↵ and a new line.
    """
    return "".join(_shown(c, lines) for c in str(text))


def _shown(c: str, lines: bool) -> str:
    if c == "\n":
        return "↵\n" if lines else "↵"
    if c in _NAMED:
        return _NAMED[c]
    if ord(c) < 0x20:
        return chr(0x2400 + ord(c))
    return f"⟨U+{ord(c):04X}⟩" if is_invisible(c) else c


def is_invisible(c: str) -> bool:
    """Whether a character changes what others look like, or has no look of its own: control and
    direction characters, surrogates, private and unassigned ones, separators of lines."""
    return unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
