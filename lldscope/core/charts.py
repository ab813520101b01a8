"""The charts of a run, declared once for dashboard, report and notebook.

Names and units of signals come from the registry (`schema`), colours from `palette`. Each front end
selects the charts it draws, and draws a line where its signal was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import palette
from .schema import ACTION_SIGNALS, UNITS

ACTIONS_SHOWN = len(palette.ACTION_COLORS)  # turns drawn in the chart of Δ by action
# Columns that are no signals: `figures.view` adds them to the table.
EVIDENCE = "evidence"
DELTA_OF_ACTION = "delta_of_action_{}"


@dataclass(frozen=True)
class Line:
    """One signal of a chart; `dash` is a Plotly style. A measured signal is drawn as its trailing
    `mean`, with the raw values faintly behind it (`ghost`); a setting is drawn as it is."""

    column: str
    label: str
    color: str
    dash: str = "solid"
    mean: bool = True
    ghost: bool = True
    right: bool = False  # on the right-hand axis
    markers: bool = False  # draw the points, too
    weight: str = ""  # the column that weights the trailing mean; empty: each step counts once


@dataclass(frozen=True)
class Chart:
    """What a chart shows. The first line is the one drawn when runs are compared."""

    id: str
    title: str
    unit: str
    note: str
    lines: tuple[Line, ...]
    log: bool = False
    zero: bool = False  # 0 is always in sight
    nonnegative: bool = False  # no line can be negative
    right_unit: str | None = None
    compared: str = ""  # name of the first line where several runs are compared


def _chart(id: str, title: str, note: str, *lines: Line, unit: str = "", **options: Any) -> Chart:
    """A chart; the unit is that of its first line unless `unit` is given."""
    return Chart(id, title, unit or UNITS[lines[0].column], note, lines, **options)


_CHARTS: tuple[Chart, ...] = (
    _chart("likelihood", "Likelihood of responses",
           "mean log π over the tokens; incorrect responses on the right-hand axis",
           Line("correct_logp", "correct", palette.BLUE),
           Line("incorrect_logp", "incorrect", palette.VERMILLION, "dash", right=True),
           right_unit="nat/token", compared="correct responses"),
    _chart("delta", "Δ of correct responses",
           "what one step's updates did, mean over responses",
           Line("delta_correct", "Δ", palette.BLUE, weight="n_delta_correct"),
           Line("retention_delta", "earlier responses", palette.GREEN, "dash"),
           Line(EVIDENCE, "evidence of decay", palette.PURPLE, "dot", mean=False, right=True),
           zero=True, right_unit="evidence", compared="mean Δ"),
    _chart("reward", "Reward", "mean over the rollouts of a step, and the held-out score",
           Line("reward", "reward", palette.GREEN),
           Line("eval_score", "held-out score", palette.BLUE, "dash", mean=False, right=True,
                markers=True), right_unit="held-out score"),
    _chart("entropy", "Entropy", "of the sampling policy, mean over action tokens",
           Line("entropy", "entropy", palette.AMBER), nonnegative=True),
    _chart("gradient", "Gradient norm", "median and largest of a step's updates, logarithmic",
           Line("grad_norm", "median", palette.BLUE),
           Line("grad_norm_max", "largest", palette.PURPLE, "dot"),
           unit="before clipping", log=True, compared="median"),
    _chart("by-action", "Δ by action", "of correct responses, by turn of the rollout",
           *(Line(DELTA_OF_ACTION.format(i), f"action {i}", color, dash, ghost=False)
             for i, (color, dash) in enumerate(zip(palette.ACTION_COLORS, palette.ACTION_DASHES,
                                                   strict=True))),
           unit=next(c.unit for c in ACTION_SIGNALS.columns if c.name == "delta"),
           zero=True, compared="action 0"),
    _chart("conduct", "Length and tool calls", "action tokens and valid searches per rollout",
           Line("response_tokens", "tokens", palette.BLUE),
           Line("valid_searches", "searches", palette.GREEN, "dash", right=True),
           Line("tool_calls", "tool calls", palette.GREEN, "dash", right=True),
           right_unit="call", nonnegative=True, compared="tokens"),
    _chart("shares", "Shares",
           "groups whose rewards are all equal, invalid actions, actions with an open LLDS gate",
           Line("zero_signal_share", "no signal", palette.GREY),
           Line("invalid_share", "invalid", palette.VERMILLION, "dash"),
           Line("llds_gate_share", "LLDS gate", palette.GREEN, "dot"),
           nonnegative=True, compared="groups without signal"),
    _chart("tools", "Tool failures", "tool calls that failed",
           Line("tool_fail_share", "failed", palette.VERMILLION), nonnegative=True),
    _chart("rate", "Learning rate", "of a step",
           Line("lr", "learning rate", palette.BLUE, mean=False), nonnegative=True),
    _chart("displaced", "Groups and first actions",
           "groups that lost likelihood, incorrect rollouts with a good first action",
           Line("displaced_share", "groups that lost likelihood", palette.VERMILLION),
           Line("good_first_action_share", "good first action, incorrect rollout", palette.BLUE,
                "dash"), nonnegative=True),
)

WEIGHTS = {line.column: line.weight for chart in _CHARTS for line in chart.lines if line.weight}
UNSMOOTHED = frozenset(line.column for chart in _CHARTS for line in chart.lines if not line.mean)


def select_charts(*ids: str) -> tuple[Chart, ...]:
    """The charts with these ids, in this order."""
    by_id = {chart.id: chart for chart in _CHARTS}
    return tuple(by_id[i] for i in ids)
