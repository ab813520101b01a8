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
    kind = unicodedata.category(c)
    if kind == "Cc" and ord(c) < 0x20:
        return chr(0x2400 + ord(c))
    if kind in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return f"⟨U+{ord(c):04X}⟩"
    return c
