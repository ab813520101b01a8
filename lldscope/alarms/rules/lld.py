"""Lazy Likelihood Displacement itself: one rule per phase (arXiv 2512.04220 v2, §5.1)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...signals import phases as p
from ...signals.evidence import SMOOTH, Evidence, Flags
from ..rule import Phases, Rule


def _in_phase(name: p.Phase) -> Callable[[Evidence, Phases], Flags]:
    return lambda e, phases: np.array([phase == name for phase in phases], dtype=bool)


def _likelihood(e: Evidence, t: int) -> str:
    """What correct responses gain or have lost, on the best evidence there is at row t."""
    if e.has_delta[t]:
        return f"mean Δ {e.delta[t]:+.2f} nats per response over {SMOOTH} steps"
    return f"{e.level_fall[t]:.2f} nats/token under their best level"


def _stagnates(e: Evidence, t: int) -> str:
    return f"the reward rises, the likelihood of correct responses does not: {_likelihood(e, t)}"


def _decays(e: Evidence, t: int) -> str:
    value, limit = e.decay.value[t], e.decay.threshold[t]
    test = f"evidence {value:,.0f} ≥ {limit:,.0f}"
    if e.decay.basis[t] != "delta":
        test = f"limit {limit:.2f}; judged on levels, Δ was not measured"
    return f"correct responses lose likelihood: {_likelihood(e, t)} ({test})"


def _collapses(e: Evidence, t: int) -> str:
    signs = {
        "an entropy surge": p.entropy_breaks_out(e)[t],
        "a gradient explosion": p.gradient_breaks_out(e)[t],
        "a reward crash": p.reward_crashed(e)[t],
    }
    outbreak = " and ".join(name for name, there in signs.items() if there)
    return f"decay turned into {outbreak}: {_likelihood(e, t)}"


LLD: tuple[Rule, ...] = (
    Rule(
        "lld-stagnation",
        "info",
        needs=("delta_correct", "correct_logp"),
        meaning="The reward rises and the likelihood of correct responses does not: phase I of "
        "Lazy Likelihood Displacement. Many healthy runs pass through it.",
        evidence="Phase stagnation: the reward of the last 20 steps against the 20 before, and Δ "
        "of correct responses (without Δ, their likelihood).",
        advice="Watch Δ of correct responses; nothing needs to be changed yet.",
        confused_with="Convergence: a policy that has learned what it can also stops gaining "
        "likelihood, but then the reward has stopped rising as well.",
        holds=_in_phase("stagnation"),
        value=lambda e: e.delta,
        threshold=lambda e: 0.0,
        unit="nats/response gained per step",
        message=_stagnates,
        inhibited=True,
    ),
    Rule(
        "lld-decay",
        "warning",
        needs=("delta_correct", "correct_logp"),
        meaning="The updates lower the likelihood of the correct responses they were meant to "
        "raise: phase II of Lazy Likelihood Displacement. The reward may still be rising.",
        evidence="Δ of correct responses (log π after the step's updates minus before, Def. 4.1), "
        "one bounded score per step in a sequential test; without Δ, how far the likelihood of "
        "correct responses lies under its best.",
        advice="Save a checkpoint now. Lower the learning rate, switch LLDS on (action gate, λ 0.1 "
        "to 0.3), add KL, or mask long low-likelihood incorrect responses.",
        confused_with="A learning rate that jumped, tool text that is trained on, a dead tool, "
        "mixed-up groups: each can push Δ below zero. Where one of them began first, this rule is "
        "silent and that one speaks (see precedence). On levels only: harder questions that begin "
        "to be solved lower the mean likelihood of correct responses as well.",
        holds=lambda e, phases: p.decay_test_fires(e),
        value=lambda e: e.decay.value,
        threshold=lambda e: e.decay.threshold,
        unit="evidence (Δ) or nats/token (level)",
        false_alarms="with Δ measured: on average at most one false alarm per `arl` steps; without "
        "Δ, on levels: an estimate from the run's own noise, or no rate is claimed",
        message=_decays,
        guarantee=lambda e, t: e.decay.guarantee(t),
        inhibited=True,
    ),
    Rule(
        "lld-collapse",
        "critical",
        needs=("delta_correct", "correct_logp"),
        meaning="Decay has turned into a break-out of gradient norm or entropy, or a reward crash: "
        "phase III of Lazy Likelihood Displacement. Most such runs do not come back.",
        evidence="Phase collapse: decay now or in the last 40 steps, together with an entropy of "
        "twice its trailing median, grad-explosion or reward-crash.",
        advice="Stop. Go back to a checkpoint from before the decay alarm and train on with LLDS.",
        confused_with="Whatever takes the reward without taking likelihood from correct responses "
        "first: then no decay comes before it, and reward-crash speaks alone.",
        holds=_in_phase("collapse"),
        value=lambda e: e.delta,
        threshold=lambda e: 0.0,
        unit="nats/response gained per step",
        message=_collapses,
        inhibited=True,
    ),
)
