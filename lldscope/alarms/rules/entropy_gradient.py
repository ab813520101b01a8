"""Entropy and gradient norm leave their usual range: something is wrong, the cause is open."""

from __future__ import annotations

import numpy as np

from ...core.numbers import short
from ...signals import phases as p
from ...signals.evidence import ENTROPY_WINDOW, GRADIENT_WINDOW, SMOOTH, Evidence, once
from ..rule import Measurement, Rule, Severity

ENTROPY_RISE = 1.5  # × its lowest trailing mean
ENTROPY_ONGOING = 1.2  # × its trailing median: a rise that has stopped is under it


@once
def entropy_surge(e: Evidence) -> Measurement:
    def message(row: int) -> str:
        return (
            f"the entropy is {e.entropy_rise[row]:.1f} × its lowest, {e.entropy_gain[row]:.2f} "
            f"nats/token above it, and {e.entropy_ratio[row]:.1f} × its trailing median (limits "
            f"{ENTROPY_RISE:g} ×, {p.ENTROPY_GAIN:g} and {ENTROPY_ONGOING:g} ×)"
        )

    risen = (e.entropy_rise >= ENTROPY_RISE) & (e.entropy_gain >= p.ENTROPY_GAIN)
    return Measurement(
        holds=risen & (e.entropy_ratio >= ENTROPY_ONGOING),
        value=e.entropy_rise,
        threshold=np.full_like(e.entropy_rise, ENTROPY_RISE),
        message=message,
    )


@once
def grad_explosion(e: Evidence) -> Measurement:
    def message(row: int) -> str:
        return (
            f"the gradient norm is {short(e.column('grad_norm')[row])}, over "
            f"{e.cadence.spans(GRADIENT_WINDOW.recent)} steps {e.grad_ratio[row]:.1f} × its "
            f"trailing median (limit {p.GRADIENT_SURGE:g} ×)"
        )

    limit = np.full_like(e.grad_ratio, p.GRADIENT_SURGE)
    return Measurement(p.gradient_surges(e), e.grad_ratio, limit, message)


RULES = (
    Rule(
        "entropy-surge",
        Severity.WARNING,
        needs=("entropy",),
        meaning="The entropy of the policy has left its usual range upwards. It can subside by "
        "itself.",
        evidence=f"Mean entropy over action tokens, the last {ENTROPY_WINDOW.recent} steps: at "
        f"least {ENTROPY_RISE:g} × its lowest {SMOOTH}-step mean so far, {p.ENTROPY_GAIN:g} "
        f"nats/token above that, and in the median {ENTROPY_ONGOING:g} × that of the "
        f"{ENTROPY_WINDOW.window} steps before the last {ENTROPY_WINDOW.gap}.",
        advice="Look at Δ of correct responses and at samples; lower the learning rate if it goes "
        "on.",
        confused_with="A changed data mix or sampling temperature moves the entropy as well; tool "
        "text that counts as the policy's own (mask-lint) raises it at one step.",
        measure=entropy_surge,
        unit="× its lowest",
        for_steps=2,
    ),
    Rule(
        "grad-explosion",
        Severity.WARNING,
        needs=("grad_norm",),
        meaning="The gradient norm before clipping has left its usual range.",
        evidence="Gradient norm of a step (median of its updates): the median of the last "
        f"{GRADIENT_WINDOW.recent} steps, at least {p.GRADIENT_SURGE:g} × that of the "
        f"{GRADIENT_WINDOW.window} steps before the last {GRADIENT_WINDOW.gap}.",
        advice="Check the data of these steps; lower the learning rate or the clip if it goes on.",
        confused_with="Steps after many without a gradient (zero-signal): the trailing median is "
        "then small, and a usual norm looks large.",
        measure=grad_explosion,
        unit="× trailing median",
        for_steps=3,
    ),
)
