"""How far a step moves the policy, beside what runs had that held and that fell: a meter."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
from dash import html

from lldscope.core import palette
from lldscope.core.numbers import number
from lldscope.diagnosis.rules.numerics import STEP_KL_FELL, STEP_KL_HELD, STEP_KL_STEPS
from lldscope.figures.series import floats

from ..data.snapshot import Snapshot
from .links import attrs

COLORS = {"--held": palette.GREEN, "--fell": palette.VERMILLION}
LOW, HIGH = 0.002, 0.5  # nats/token, the ends of its logarithmic scale


def dose(snapshot: Snapshot) -> list[Any]:
    """The mean of the last steps' `step_kl` on its scale; nothing where it was not measured."""
    late = floats(snapshot.subject.table, "step_kl")[-STEP_KL_STEPS:]
    finite = late[np.isfinite(late)]
    if not len(finite):
        return []
    value = float(finite.mean())
    text = f"{number(value)} nats/token, {words_of(value)}"
    zones = [
        html.Span(className=f"zone {name}", style={"left": f"{_at(a):.1f}%",
                                                   "width": f"{_at(b) - _at(a):.1f}%"})
        for name, (a, b) in (("held", STEP_KL_HELD), ("fell", STEP_KL_FELL))
    ]
    marker = html.Span(className="at", style={"left": f"{_at(value):.1f}%"})
    about = attrs(aria_label="step size", aria_valuetext=text, aria_valuenow=f"{value:.4g}",
                  aria_valuemin=f"{LOW}", aria_valuemax=f"{HIGH}")
    title = (
        f"KL of a step per token, mean of the last {STEP_KL_STEPS} steps, on a logarithmic scale; "
        f"stable runs had {STEP_KL_HELD[0]} to {STEP_KL_HELD[1]}, runs that degraded "
        f"{STEP_KL_FELL[0]} to {STEP_KL_FELL[1]}"
    )
    return [
        html.Span("step size", className="key"),
        html.Span([*zones, marker], className="meter", role="meter", title=title, style=COLORS,
                  **about),
        html.Span(text, title=title),
        html.Button("its chart", id={"type": "add", "index": "step_kl"}, className="button small"),
    ]


def words_of(value: float) -> str:
    """What a step size means, by what other runs had."""
    if value < STEP_KL_HELD[0]:
        return "below the range of stable runs"
    if value <= STEP_KL_HELD[1]:
        return "in the range of stable runs"
    if value < STEP_KL_FELL[0]:
        return "above the range of stable runs"
    return (
        "in the range of runs that degraded"
        if value <= STEP_KL_FELL[1]
        else "above the range of runs that degraded"
    )


def _at(value: float) -> float:
    """Where a value lies on the scale, in percent."""
    share = log(max(value, LOW) / LOW) / log(HIGH / LOW)
    return 100 * min(1.0, share)
