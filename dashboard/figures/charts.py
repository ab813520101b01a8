"""The eight charts of a run, as declarations; units come from lldscope's registry of signals."""

from __future__ import annotations

from dataclasses import dataclass

from lldscope.core.schema import ACTION_SIGNALS, SIGNALS

from . import theme

ACTIONS_SHOWN = 4  # turns drawn in the chart of Δ by action
EVIDENCE = "evidence"  # columns that `shelf` adds to the signals
DELTA_OF_ACTION = "delta_of_action_{}"

_UNITS = {c.name: c.unit for c in SIGNALS.columns}


@dataclass(frozen=True)
class Line:
    """One signal of a chart.

    `mean`: drawn as trailing mean; `ghost`: with the raw values faintly behind it.
    """

    column: str
    label: str
    color: str
    dash: str = "solid"
    mean: bool = True
    ghost: bool = True
    right: bool = False  # on the right-hand axis


@dataclass(frozen=True)
class Chart:
    """What a chart shows. The first line is the one drawn when runs are compared."""

    id: str
    title: str
    unit: str
    note: str
    lines: tuple[Line, ...]
    log: bool = False
    zero: bool = False
    right_unit: str | None = None
    compared: str = ""  # what the first line is, where several runs are compared


CHARTS: tuple[Chart, ...] = (
    Chart(
        "likelihood",
        "Likelihood of responses",
        _UNITS["correct_logp"],
        "mean log π over the tokens of correct and of incorrect responses",
        (
            Line("correct_logp", "correct", theme.BLUE),
            Line("incorrect_logp", "incorrect", theme.VERMILLION, "dash"),
        ),
        compared="correct responses",
    ),
    Chart(
        "delta",
        "Δ of correct responses",
        _UNITS["delta_correct"],
        "what one step's updates did to the likelihood of its correct responses",
        (
            Line("delta_correct", "Δ", theme.BLUE),
            Line(EVIDENCE, "evidence of decay", theme.PURPLE, "dot", mean=False, right=True),
        ),
        zero=True,
        right_unit="evidence",
        compared="mean Δ",
    ),
    Chart(
        "reward",
        "Reward",
        _UNITS["reward"],
        "mean over the rollouts of a step",
        (Line("reward", "reward", theme.GREEN),),
    ),
    Chart(
        "entropy",
        "Entropy",
        _UNITS["entropy"],
        "of the sampling policy, mean over action tokens",
        (Line("entropy", "entropy", theme.AMBER),),
    ),
    Chart(
        "gradient",
        "Gradient norm",
        "before clipping",
        "median and largest of a step's updates, logarithmic",
        (
            Line("grad_norm", "median", theme.BLUE),
            Line("grad_norm_max", "largest", theme.PURPLE, "dot"),
        ),
        log=True,
        compared="median",
    ),
    Chart(
        "by-action",
        "Δ by action",
        next(c.unit for c in ACTION_SIGNALS.columns if c.name == "delta"),
        "of correct responses, by turn of the rollout",
        tuple(
            Line(
                DELTA_OF_ACTION.format(i),
                f"action {i}",
                theme.ACTION_COLORS[i],
                theme.ACTION_DASHES[i],
                ghost=False,
            )
            for i in range(ACTIONS_SHOWN)
        ),
        zero=True,
        compared="action 0",
    ),
    Chart(
        "conduct",
        "Length and searches",
        "token",
        "action tokens and valid searches per rollout",
        (
            Line("response_tokens", "tokens", theme.BLUE),
            Line("valid_searches", "searches", theme.GREEN, "dash", right=True),
        ),
        right_unit="search",
        compared="tokens",
    ),
    Chart(
        "shares",
        "Shares",
        "share",
        "groups whose rewards are all equal, invalid actions, actions with an open LLDS gate",
        (
            Line("zero_signal_share", "no signal", theme.GREY),
            Line("invalid_share", "invalid", theme.VERMILLION, "dash"),
            Line("llds_gate_share", "LLDS gate", theme.GREEN, "dot"),
        ),
        compared="groups without signal",
    ),
)
