"""Alarm rules as declarations, and the states they go through.

A rule says when it holds, how bad that is, what it means and what to do. Its states are
inactive → pending (holds, but not for long enough) → firing → resolved. `stalled` is not here: it
is about the run's process and clock, not about its rows (see `liveness`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from . import detectors as d
from . import phases as p
from .evidence import SMOOTH, Evidence, Flags

Severity = Literal["info", "warning", "critical"]
State = Literal["inactive", "pending", "firing", "resolved"]
Phases = Sequence[p.Phase | None]

_NO_RATE = "threshold rule: its false-alarm rate is not known"


@dataclass(frozen=True)
class Rule:
    """One alarm. It can be observed where at least one of the signals in `needs` is measured."""

    id: str
    severity: Severity
    needs: tuple[str, ...]
    meaning: str
    advice: str
    holds: Callable[[Evidence, Phases], Flags]
    value: Callable[[Evidence], d.Series]
    threshold: Callable[[Evidence], d.Series | float]
    unit: str
    for_steps: int = 1
    clear_steps: int = 20
    false_alarms: str = _NO_RATE


@dataclass(frozen=True)
class Alert:
    """A rule that has fired. `step` is where it first did, `value` and `threshold` are from there.

    `episodes` are (fired, resolved) steps; resolved is None while it still fires.
    """

    rule: str
    severity: Severity
    state: State
    step: int
    value: float
    threshold: float
    message: str
    meaning: str
    advice: str
    false_alarms: str
    episodes: tuple[tuple[int, int | None], ...]


def _in_phase(name: p.Phase) -> Callable[[Evidence, Phases], Flags]:
    return lambda e, phases: np.array([phase == name for phase in phases], dtype=bool)


def _mean(name: str, window: int = 5) -> Callable[[Evidence], d.Series]:
    return lambda e: d.trailing_mean(e.column(name), window, 1)


def _searches_left(e: Evidence) -> d.Series:
    return d.over_median(e.column("valid_searches"), 5, 5, 50, 15)


RULES: tuple[Rule, ...] = (
    Rule(
        "lld-stagnation",
        "info",
        needs=("delta_correct", "correct_logp"),
        meaning="The reward rises and the likelihood of correct responses does not: phase I of "
        "Lazy Likelihood Displacement. Many healthy runs pass through it.",
        advice="Watch Δ of correct responses; nothing needs to be changed yet.",
        holds=_in_phase("stagnation"),
        value=lambda e: e.delta,
        threshold=lambda e: 0.0,
        unit="nats/response gained per step",
    ),
    Rule(
        "lld-decay",
        "warning",
        needs=("delta_correct", "correct_logp"),
        meaning="The updates lower the likelihood of the correct responses they were meant to "
        "raise: phase II of Lazy Likelihood Displacement. The reward may still be rising.",
        advice="Save a checkpoint now. Switch LLDS on (action gate, λ 0.1 to 0.3), or lower the "
        "learning rate, add KL, or mask long low-likelihood incorrect responses.",
        holds=lambda e, phases: p.decay_test_fires(e),
        value=lambda e: np.where(e.has_delta, e.e_value, e.level_fall),
        threshold=lambda e: np.where(e.has_delta, e.arl, e.level_limit),
        unit="evidence (Δ) or nats/token (level)",
        for_steps=1,
        false_alarms="with Δ measured: on average at most one false alarm per `arl` steps; "
        "without Δ, on levels: a threshold, no rate is claimed",
    ),
    Rule(
        "lld-collapse",
        "critical",
        needs=("delta_correct", "correct_logp"),
        meaning="Decay has turned into a break-out of gradient norm or entropy, or a reward "
        "crash: phase III of Lazy Likelihood Displacement. Waiting does not help.",
        advice="Stop. Go back to a checkpoint from before the decay alarm and train on with LLDS.",
        holds=_in_phase("collapse"),
        value=lambda e: e.delta,
        threshold=lambda e: 0.0,
        unit="nats/response gained per step",
    ),
    Rule(
        "entropy-surge",
        "warning",
        needs=("entropy",),
        meaning="The entropy of the policy has left its usual range upwards. It can subside by "
        "itself.",
        advice="Look at Δ of correct responses and at samples; lower the learning rate if it goes "
        "on.",
        holds=lambda e, phases: p.entropy_breaks_out(e),
        value=lambda e: e.entropy_ratio,
        threshold=lambda e: p.ENTROPY_BREAKOUT,
        unit="× trailing median",
        for_steps=5,
    ),
    Rule(
        "grad-explosion",
        "warning",
        needs=("grad_norm",),
        meaning="The gradient norm before clipping has left its usual range.",
        advice="Check the data of these steps; lower the learning rate or the clip if it goes on.",
        holds=lambda e, phases: p.gradient_breaks_out(e),
        value=lambda e: e.grad_ratio,
        threshold=lambda e: p.GRAD_BREAKOUT,
        unit="× trailing median",
        for_steps=3,
    ),
    Rule(
        "reward-crash",
        "critical",
        needs=("reward",),
        meaning="The reward has lost more than half of its best ten-step mean. This says that the "
        "run is dying, not why.",
        advice="Stop and look at the look-alikes: a dead tool, truncation and a mask bug look the "
        "same here.",
        holds=lambda e, phases: p.reward_crashed(e),
        value=lambda e: e.reward / e.reward_peak,
        threshold=lambda e: p.CRASH,
        unit="of the best ten-step mean",
        for_steps=5,
    ),
    Rule(
        "nonfinite",
        "critical",
        needs=("n_nonfinite",),
        meaning="A gradient norm, loss, entropy or reward was NaN or infinite.",
        advice="Check for overflow (bf16, log of 0, empty masks); resume from the last checkpoint "
        "before.",
        holds=lambda e, phases: e.column("n_nonfinite") > 0,
        value=lambda e: e.column("n_nonfinite"),
        threshold=lambda e: 0.0,
        unit="updates or sums",
        false_alarms="none: it reports what was recorded",
    ),
    Rule(
        "tool-outage",
        "critical",
        needs=("tool_fail_share",),
        meaning="More than half of the tool calls fail.",
        advice="Restart the retriever; discard the steps trained meanwhile. This is not LLD.",
        holds=lambda e, phases: _mean("tool_fail_share")(e) > 0.5,
        value=_mean("tool_fail_share"),
        threshold=lambda e: 0.5,
        unit="of the tool calls",
        for_steps=3,
    ),
    Rule(
        "tool-abandoned",
        "warning",
        needs=("valid_searches",),
        meaning="The policy makes less than a third of the searches it used to make.",
        advice="Look at samples: does it answer without looking, or fail to write a valid search?",
        holds=lambda e, phases: _searches_left(e) < 0.33,
        value=_searches_left,
        threshold=lambda e: 0.33,
        unit="of the trailing median",
        for_steps=5,
    ),
    Rule(
        "truncation",
        "warning",
        needs=("truncated_share",),
        meaning="More than a third of the rollouts are cut by a length limit.",
        advice="Raise the limit, or find out why responses grow.",
        holds=lambda e, phases: _mean("truncated_share")(e) > 0.33,
        value=_mean("truncated_share"),
        threshold=lambda e: 0.33,
        unit="of the rollouts",
        for_steps=5,
    ),
    Rule(
        "engine-mismatch",
        "warning",
        needs=("engine_gap",),
        meaning="The engine that samples and the trainer disagree on the same tokens.",
        advice="Check weight sync, precision and the sampling settings of the engine.",
        holds=lambda e, phases: np.abs(_mean("engine_gap")(e)) > 0.05,
        value=lambda e: np.abs(_mean("engine_gap")(e)),
        threshold=lambda e: 0.05,
        unit="nats/token",
        for_steps=5,
    ),
)

# What looks like LLD on a reward curve; each id says which rule observes it. A cause that no rule
# observes yet is said to be not observable rather than ruled out.
LOOK_ALIKES: dict[str, str | None] = {
    "lld": "lld-decay",
    "tool-outage": "tool-outage",
    "truncation": "truncation",
    "nonfinite": "nonfinite",
    "engine-mismatch": "engine-mismatch",
    "mask-lint": None,
    "reward-parsing": None,
}


def evaluate(e: Evidence, phases: Phases, rules: Sequence[Rule] = RULES) -> list[Alert]:
    """Every rule of `rules` that has fired up to the last row, worst and then earliest first."""
    alerts = [alert for rule in rules if (alert := _evaluate(rule, e, phases)) is not None]
    order = {"critical": 0, "warning": 1, "info": 2}
    return sorted(alerts, key=lambda a: (order[a.severity], a.step))


def _evaluate(rule: Rule, e: Evidence, phases: Phases) -> Alert | None:
    with np.errstate(invalid="ignore"):
        holds = np.asarray(rule.holds(e, phases), dtype=bool)
    spans = episodes(holds, rule.for_steps, rule.clear_steps)
    if not spans:
        return None
    first = spans[0][0]
    value = float(np.asarray(rule.value(e))[first])
    limit = np.broadcast_to(np.asarray(rule.threshold(e), dtype=float), (len(e.step),))
    threshold = float(limit[first])
    return Alert(
        rule.id,
        rule.severity,
        "firing" if spans[-1][1] is None else "resolved",
        int(e.step[first]),
        value,
        threshold,
        _message(rule, e, first, value, threshold),
        rule.meaning,
        rule.advice,
        rule.false_alarms,
        tuple((int(e.step[a]), None if b is None else int(e.step[b])) for a, b in spans),
    )


def episodes(holds: Flags, for_steps: int, clear_steps: int) -> list[tuple[int, int | None]]:
    """Row spans in which an alarm fires: from `for_steps` of true to `clear_steps` of false."""
    on = d.consecutive(holds)
    off = d.consecutive(~holds)
    spans: list[tuple[int, int | None]] = []
    start: int | None = None
    for t in range(len(holds)):
        if start is None and on[t] >= for_steps:
            start = t
        elif start is not None and off[t] >= clear_steps:
            spans.append((start, t))
            start = None
    return spans if start is None else [*spans, (start, None)]


def _message(rule: Rule, e: Evidence, t: int, value: float, threshold: float) -> str:
    """One line with the numbers at the step where the alarm first fired."""
    if rule.id == "lld-decay":
        test = (
            f"evidence {value:,.0f} ≥ {threshold:,.0f}"
            if e.has_delta[t]
            else (f"limit {threshold:.2f}; judged on levels, Δ was not measured")
        )
        return f"correct responses lose likelihood: {_likelihood(e, t)} ({test})"
    if rule.id == "lld-collapse":
        return f"decay turned into {_outbreak(e, t)}: {_likelihood(e, t)}"
    if rule.id == "lld-stagnation":
        return (
            f"the reward rises, the likelihood of correct responses does not: {_likelihood(e, t)}"
        )
    first = rule.meaning.split(". ")[0].rstrip(".")
    return f"{first[0].lower()}{first[1:]}: {value:.3g} {rule.unit} (limit {threshold:.3g})"


def _likelihood(e: Evidence, t: int) -> str:
    """What correct responses gain or have lost, on the best evidence there is at row t."""
    if e.has_delta[t]:
        return f"mean Δ {e.delta[t]:+.2f} nats per response over {SMOOTH} steps"
    return f"{e.level_fall[t]:.2f} nats/token under their best level"


def _outbreak(e: Evidence, t: int) -> str:
    signs = {
        "an entropy surge": p.entropy_breaks_out(e)[t],
        "a gradient explosion": p.gradient_breaks_out(e)[t],
        "a reward crash": p.reward_crashed(e)[t],
    }
    return " and ".join(name for name, there in signs.items() if there)
