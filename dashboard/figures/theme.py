"""The palette, and its ground and ink as CSS with a toggle between light and dark."""

from __future__ import annotations

from lldscope.core.palette import (
    AMBER,
    BLUE,
    DARK,
    GREEN,
    GREY,
    LIGHT,
    NEUTRAL,
    PHASES,
    PURPLE,
    RUN_COLORS,
    RUN_DASHES,
    SEVERITIES,
    SKY,
    VERDICTS,
    VERMILLION,
    Sign,
    variables,
)

__all__ = [
    "AMBER",
    "BLUE",
    "GREEN",
    "GREY",
    "NEUTRAL",
    "PHASES",
    "PURPLE",
    "RUN_COLORS",
    "RUN_DASHES",
    "SEVERITIES",
    "SKY",
    "VERDICTS",
    "VERMILLION",
    "Sign",
    "css",
]


def css() -> str:
    """The colour table as CSS: light, dark by the system's wish, and either by the toggle."""
    light = f"color-scheme:light;{variables(LIGHT)}"
    dark = f"color-scheme:dark;{variables(DARK)}"
    return (
        f":root{{{light}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}"
    )
