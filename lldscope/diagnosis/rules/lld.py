"""Lazy Likelihood Displacement itself: one rule per phase (arXiv 2512.04220 v2, §5.1)."""

from __future__ import annotations

import numpy as np

from .. import conditions as c
from .. import detectors as d
from .. import usual
from ..evidence import SMOOTH, TEST_STEPS, Evidence, once
from ..outcome import outcome, slips
from ..rule import Measurement, Rule, Severity
from .measures import mean

NEEDS = ("delta_correct", "correct_logp")
GAIN_UNIT = "nats/response gained per step"
RETENTION_SHARE = 0.5  # of the gain of a step's own correct responses


def _likelihood(e: Evidence, row: int) -> str:
    """In words: the gain or loss of correct responses, by the best available evidence."""
    if e.has_delta[row]:
        text = f"mean Δ {e.delta[row]:+.2f} nats per response over {e.cadence.spans(SMOOTH)} steps"
        # As often up as down, so the decay test keeps its rate; smaller losses show later.
        if (rounding := e.column("delta_correct_rounding")[row]) > 0:
            text += f", each rounded to ± {rounding:.2f} by the trainer's number format"
        return text
    return f"{e.decay.level_fall[row]:.2f} nats/token under their best level"


@once
def stagnation(e: Evidence) -> Measurement:
    def message(row: int) -> str:
        likelihood = _likelihood(e, row)
        return f"the reward rises, the likelihood of correct responses does not: {likelihood}"

    return Measurement(np.ones_like(e.has_delta), e.delta, np.zeros_like(e.delta), message)


@once
def decay(e: Evidence) -> Measurement:
    def message(row: int) -> str:
        value, limit = e.decay.value[row], e.decay.threshold[row]
        test = f"evidence {value:,.0f} ≥ {limit:,.0f}"
        if e.decay.basis[row] != "delta":
            test = f"limit {limit:.2f}; judged on levels, Δ was not measured"
        return f"correct responses lose likelihood: {_likelihood(e, row)} ({test})"

    return Measurement(c.decay_test_fires(e), e.decay.value, e.decay.threshold, message)


@once
def retention(e: Evidence) -> Measurement:
    # Any change of the policy makes its earlier samples less likely: a loss alone is no sign.
    net = e.column("retention_delta") + RETENTION_SHARE * e.column("delta_correct")
    evidence = d.e_detector(d.loss_score(net, e.resets.tolist()), e.arl)
    change = mean(e, "retention_delta", SMOOTH)

    def message(row: int) -> str:
        losses = "lose likelihood, as those of the step do"
        if e.delta[row] > 0:
            losses = "lose more than half of what those of the step gain"
        return (
            f"correct responses of earlier steps {losses}: {change[row]:+.2f} against Δ "
            f"{e.delta[row]:+.2f} nats per response and step, means over "
            f"{e.cadence.spans(SMOOTH)} steps (evidence {evidence[row]:,.0f} ≥ {e.arl:,.0f})"
        )

    return Measurement(evidence >= e.arl, evidence, e.arl, message)


@once
def collapse(e: Evidence) -> Measurement:
    def message(row: int) -> str:
        signs = {
            "an entropy surge": c.entropy_surges(e)[row],
            "a gradient explosion": c.gradient_surges(e)[row],
            "a reward crash": c.reward_crashed(e)[row],
        }
        symptoms = " and ".join(name for name, there in signs.items() if there) or "a faster fall"
        return f"decay turned into {symptoms}: {_likelihood(e, row)}"

    # A loss of likelihood is critical once the reward falls, or if no reward was measured.
    grave = c.recently(e, slips(e), 1) | np.isnan(outcome(e).level)
    always = np.ones_like(e.has_delta)
    return Measurement(always, e.delta, np.zeros_like(e.delta), message, grave=grave)


RULES = (
    Rule(
        "lld-stagnation", measure=stagnation, severity=Severity.INFO, needs=NEEDS, unit=GAIN_UNIT,
        phase="stagnation", inhibited=True,
        cause="The likelihood of correct responses does not rise", action="watch it",
        meaning="The reward rises and the likelihood of correct responses does not: phase I of "
        "Lazy Likelihood Displacement. Many healthy runs pass through it.",
        evidence=f"Phase stagnation: the reward of the last {TEST_STEPS} steps against the "
        f"{TEST_STEPS} before, and Δ of correct responses (without Δ, their likelihood).",
        advice="Watch Δ of correct responses; nothing needs to be changed yet.",
        confused_with="Convergence: then the reward has stopped rising too.",
    ),
    Rule(
        "lld-decay", measure=decay, needs=NEEDS, unit="evidence (Δ) or nats/token (level)",
        inhibited=True, guarantee=lambda e, row: e.decay.guarantee(row),
        cause="Correct responses lose likelihood", action="lower the learning rate or use LLDS",
        meaning="Updates lower the likelihood of the correct responses they were meant to raise: "
        "phase II of Lazy Likelihood Displacement. The reward may still be rising.",
        evidence="Δ of correct responses (log π after the step's updates minus before, Def. 4.1), "
        "one bounded score per step in a sequential test; without Δ, how far the likelihood of "
        "correct responses is under its best.",
        advice="Save a checkpoint now. Lower the learning rate, switch LLDS on (action gate, λ 0.1 "
        "to 0.3), add KL, or mask long low-likelihood incorrect responses.",
        confused_with="Another cause that pushes Δ under 0 (learning rate, mask, tools, groups): "
        "where it began first, its rule fires instead (docs/alarms.md). On levels only: harder "
        "questions that begin to be solved.",
        promise="with Δ: on average at most one per `arl` steps; without Δ: an estimate from "
        "the run's own noise, or unknown",
    ),
    Rule(
        "retention-loss", measure=retention, severity=Severity.INFO, needs=("retention_delta",),
        needs_too=("delta_correct",), unit="evidence", inhibited=True,
        cause="Correct responses of earlier steps lose likelihood",
        action="compare held-out scores",
        meaning="Training on new questions unlearns correct answers to others. The Δ of a step "
        "covers only the responses that the step trains on, and cannot show this.",
        evidence="A few correct responses of each step are scored again after each of the next 16: "
        "their mean change in a step plus half of Δ of the step's own, in the sequential test of "
        "lld-decay. Any change costs something; more than half of the gain is too much.",
        advice="Compare held-out evaluations. Where they fall, lower the learning rate or the "
        "number of updates per batch; then LLDS, or KL to the reference.",
        confused_with="A policy that learns another wording: the old one loses likelihood although "
        "nothing is forgotten, and the held-out score holds.",
        promise="on average at most one per `arl` steps, as long as a step is expected to "
        "cost correct responses of earlier steps at most half of what it gives its own",
    ),
    Rule(
        "lld-collapse", measure=collapse, severity=Severity.CRITICAL, needs=NEEDS, unit=GAIN_UNIT,
        phase="collapse", inhibited=True, back=True,
        cause="Correct responses lost likelihood, and the policy breaks",
        action="lower the learning rate or use LLDS",
        meaning="Decay has turned into a surge of gradient norm or entropy, or a reward crash: "
        "phase III of Lazy Likelihood Displacement. Most such runs do not come back.",
        evidence=f"Phase collapse: decay now or in the last {c.MEMORY} steps, together with an "
        f"entropy of {usual.ENTROPY_COLLAPSE:g} × usual, a gradient norm of "
        f"{usual.GRADIENT_SURGE:g} × usual, or a reward crash. Critical once the reward falls.",
        advice="Go back to a checkpoint from before the decay alarm and train on with a "
        "lower learning rate or with LLDS.",
        confused_with="A cause that lowers the reward without lowering the likelihood of correct "
        "responses first: then only reward-crash fires.",
    ),
)
