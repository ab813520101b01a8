"""Breakdowns that the reward may not show, in gradients, response length and KL."""

from __future__ import annotations

import numpy as np

from ...core.numbers import short
from .. import detectors as d
from .. import phases as p
from ..evidence import Evidence, on_measured, once
from ..rule import Measurement, Rule, Severity
from .measures import EARLIER_MAXIMUM, over_extreme, percent

BASE = d.MedianWindow(recent=10, gap=10, window=30, least=15)
SUSTAINED = 5.0  # × the lowest trailing median of the gradient norm
SHRUNK = 1 / 3  # × the largest trailing median of the response length
KL_SURGE = 3.0  # × the lowest trailing median of the KL
KL_EXPLOSION = 4.0  # × the largest KL up to KL_EARLIER steps before
KL_RECENT = 5  # steps whose median is compared
KL_EARLIER = 30  # steps
KL_LEAST = 90  # steps; a KL that grows as the cube of the steps takes longer then to quadruple


@once
def sustained_gradient(e: Evidence) -> Measurement:
    no_gradient = e.column("zero_signal_share") == 1.0
    norm = np.where(no_gradient, np.nan, e.column("grad_norm"))
    ratio = over_extreme(e, norm, BASE, np.fmin)

    def message(row: int) -> str:
        return (
            f"the gradient norm of {e.cadence.spans(BASE.recent)} steps is {ratio[row]:.1f} × the "
            f"lowest it has been (limit {SUSTAINED:g} ×)"
        )

    return Measurement(ratio >= SUSTAINED, ratio, d.constant(SUSTAINED, ratio), message)


@once
def shrinking(e: Evidence) -> Measurement:
    tokens = e.column("response_tokens")
    ratio = over_extreme(e, tokens, BASE, np.fmax)
    kl = over_extreme(e, e.column("kl"), BASE, np.fmin)
    broken = p.recently(e, p.gradient_surges(e) | (kl >= KL_SURGE), 1)

    def message(row: int) -> str:
        return (
            f"responses have {short(tokens[row])} tokens, {percent(ratio[row])} of what they had "
            f"over {e.cadence.spans(BASE.recent)} steps (limit {percent(SHRUNK)}), after a surge "
            "of gradient norm or KL"
        )

    shrunk = ratio <= SHRUNK
    holds = shrunk & broken
    for t in np.flatnonzero(shrunk):  # however long ago that surge is, as long as they are short
        holds[t] |= t > 0 and holds[t - 1]
    return Measurement(holds, ratio, d.constant(SHRUNK, ratio), message)


@once
def kl_explosion(e: Evidence) -> Measurement:
    recent, earlier, least = (e.cadence.rows(n) for n in (KL_RECENT, KL_EARLIER, KL_LEAST))

    def over_earlier(known: d.Series) -> d.Series:
        level = d.trailing_median(known, recent, recent).tolist()
        out, largest = [np.nan] * len(level), np.nan
        for t in range(earlier, len(level)):
            before = level[t - earlier]
            exploded = out[t - earlier] >= KL_EXPLOSION  # and does not become the usual
            if before > 0 and not exploded and not before <= largest:
                largest = before
            if t >= least:
                out[t] = level[t] / largest
        return np.array(out)

    ratio = on_measured(e.column("kl"), over_earlier)

    def message(row: int) -> str:
        return (
            f"the KL to the reference over {e.cadence.spans(KL_RECENT)} steps is {ratio[row]:.1f} "
            f"× the largest up to {e.cadence.spans(KL_EARLIER)} steps before (limit "
            f"{KL_EXPLOSION:g} ×)"
        )

    return Measurement(ratio >= KL_EXPLOSION, ratio, d.constant(KL_EXPLOSION, ratio), message)


RULES = (
    Rule(
        "grad-sustained",
        Severity.CRITICAL,
        needs=("grad_norm",),
        meaning="The gradient norm before clipping has risen and stays there: every update is "
        "clipped to the same length, whatever it says.",
        evidence=f"Median gradient norm of the last {BASE.recent} steps: at least {SUSTAINED:g} × "
        f"the lowest median of {BASE.window} steps so far.",
        advice="Go back to a checkpoint from before it rose, with a lower learning rate; look for "
        "long or unlikely incorrect responses in these steps.",
        confused_with="A batch that was made smaller, or a loss that sums over tokens where "
        "responses grow: both raise the norm for good.",
        measure=sustained_gradient,
        unit="× its lowest median",
        for_steps=10,
    ),
    Rule(
        "length-collapse",
        Severity.CRITICAL,
        needs=("response_tokens",),
        meaning="Responses have shrunk to a third of what they were, after gradient norm or KL "
        "rose sharply: the policy has found a short answer that pays, or that it cannot leave. The "
        "reward may be rising.",
        evidence=f"Median response length of the last {BASE.recent} steps: at most "
        f"{percent(SHRUNK)} of the largest median of {BASE.window} steps so far, from within "
        f"{p.MEMORY} steps of a gradient norm of {p.GRADIENT_SURGE:g} × its trailing median or a "
        f"KL of {KL_SURGE:g} × its lowest.",
        advice="Read responses of these steps. If they exploit the reward, fix it; go back to a "
        "checkpoint from before they shrank.",
        confused_with="A length penalty or shorter questions from some step on: then neither "
        "rises sharply.",
        measure=shrinking,
        unit="of the largest median",
        for_steps=5,
        fires_below=True,
    ),
    Rule(
        "kl-explosion",
        Severity.WARNING,
        needs=("kl",),
        meaning="The policy leaves the reference much faster than it did. The reward may be "
        "rising.",
        evidence=f"Median KL to the reference of the last {KL_RECENT} steps: at least "
        f"{KL_EXPLOSION:g} × the largest such median up to {KL_EARLIER} steps before, after "
        f"{KL_LEAST} steps.",
        advice="Read responses of these steps: what does the reward pay for? Go back to a "
        "checkpoint from before, with a lower learning rate or a larger KL coefficient.",
        confused_with="A reference that was replaced, or a KL coefficient that was lowered.",
        measure=kl_explosion,
        unit=EARLIER_MAXIMUM,
        for_steps=3,
    ),
)
