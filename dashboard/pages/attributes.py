"""Attributes of HTML whose names are no names in Python."""

from __future__ import annotations

from typing import Any


def attrs(**named: Any) -> Any:
    """`aria_label="…"` as Dash wants it; what is None is left out."""
    return {name.replace("_", "-"): value for name, value in named.items() if value is not None}
