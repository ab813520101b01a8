"""Text from a run made visible: whatever a browser or a terminal would obey is shown as a mark."""

from __future__ import annotations

import unicodedata

_NAMED = {"\t": "→", "\r": "␍", "\x7f": "␡"}


def escape_control(text: object, lines: bool = False) -> str:
    """Control characters as their pictures, direction marks and other invisible ones by number.

    A line feed is a picture as well, or, with `lines`, the picture and a new line.
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
