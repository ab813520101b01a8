"""Entropy and gradient norm leave their usual range: something is wrong, the cause is open."""

from __future__ import annotations

import numpy as np

from ...core.numbers import short
from .. import detectors as d
from .. import phases as p
from ..evidence import (
    ENTROPY_WINDOW,
    GRADIENT_WINDOW,
    SMOOTH,
    Evidence,
    Flags,
    on_measured,
    once,
)
from ..rule import Measurement, Rule, Severity
from .measures import percent, restarts

ENTROPY_RISE = 1.5  # × its lowest trailing mean
ENTROPY_ONGOING = 1.2  # × its trailing median: a rise that has stopped is under it
ENTROPY_HIGH = 3.0  # × its lowest trailing mean: no new usual range, whether it still rises or not
RISE_STEPS = (ENTROPY_WINDOW.recent, SMOOTH)  # steps of the means that may show the rise
CLEAR_RISE = 5.0  # standard errors of the logarithm
FLOOR = 0.05  # × the entropy of the first SMOOTH steps
FALL_STEPS = 40  # steps over which the slope is taken
UNPLANNED = 0.5  # × the steps so far: how far is looked ahead where no number is planned
CLEAR_FALL = 3.0  # standard errors of the slope
MEDIAN_ERROR = 1.2533  # standard error of a median over that of the mean, normal distribution


@once
def entropy_surge(e: Evidence) -> Measurement:
    def message(row: int) -> str:
        return (
            f"the entropy is {e.entropy_rise[row]:.1f} × its lowest, {e.entropy_gain[row]:.2f} "
            f"nats/token above it, and {e.entropy_ratio[row]:.1f} × its trailing median (limits "
            f"{ENTROPY_RISE:g} × and {p.ENTROPY_GAIN:g}, and {ENTROPY_ONGOING:g} × or, of its "
            f"lowest, {ENTROPY_HIGH:g} ×)"
        )

    risen = (e.entropy_rise >= ENTROPY_RISE) & (e.entropy_gain >= p.ENTROPY_GAIN)
    ongoing = (e.entropy_ratio >= ENTROPY_ONGOING) | (e.entropy_rise >= ENTROPY_HIGH)
    return Measurement(
        holds=risen & _clearly_risen(e) & ongoing,
        value=e.entropy_rise,
        threshold=d.constant(ENTROPY_RISE, e.entropy_rise),
        message=message,
    )


def _clearly_risen(e: Evidence) -> Flags:
    """A mean of the last steps is above the lowest by more than the noise of successive steps
    before them explains."""
    windows = [e.cadence.rows(steps) for steps in RISE_STEPS]
    smooth, gap = e.cadence.rows(SMOOTH), e.cadence.median(ENTROPY_WINDOW).gap

    def z(log: d.Series) -> d.Series:
        noise = np.sqrt(d.shifted(_noise(log, smooth), gap))
        lowest = np.fmin.accumulate(d.trailing_mean(log, smooth, smooth))
        rises = [
            (d.trailing_mean(log, rows, rows) - lowest) / (noise * np.sqrt(1 / rows + 1 / smooth))
            for rows in windows
        ]
        return np.asarray(np.fmax.reduce(rises))

    # Without noise any rise is clear.
    return ~(on_measured(_log_entropy(e), z, e.parts) < CLEAR_RISE)


def _noise(log: d.Series, smooth: int) -> d.Series:
    """`detectors.noise_of_means` of what is left without the trend: a steep fall is no noise."""
    return d.noise_of_means(log - d.trailing_median(log, smooth, smooth))


def _log_entropy(e: Evidence) -> d.Series:
    entropy = e.column("entropy")
    return np.log(np.where(entropy > 0, entropy, np.nan))


@once
def entropy_floor(e: Evidence) -> Measurement:
    log = _log_entropy(e)
    smooth = e.cadence.rows(SMOOTH)
    apart = e.cadence.rows(FALL_STEPS - SMOOTH)  # rows between the medians compared
    data = np.flatnonzero(restarts(e, "data"))

    def level(known: d.Series) -> d.Series:
        return d.trailing_median(known, smooth, smooth)

    def above_floor(known: d.Series) -> d.Series:
        first = known[:smooth]
        return level(known) - np.median(first) - np.log(FLOOR)

    def slope(known: d.Series) -> d.Series:
        return (level(known) - d.shifted(level(known), apart)) / (apart * e.cadence.stride)

    def error(known: d.Series) -> d.Series:
        noise = MEDIAN_ERROR * np.sqrt(2 * _noise(known, smooth) / smooth)
        return noise / (apart * e.cadence.stride)

    above, falls, errors = (on_measured(log, f, data) for f in (above_floor, slope, error))
    fastest, slowest = falls - CLEAR_FALL * errors, falls + CLEAR_FALL * errors
    arrives = np.where(slowest < 0, np.maximum(above, 0.0) / -slowest, np.nan)  # steps from now
    arrives = np.where((above <= 0) & ~(fastest > 0), 0.0, arrives)
    planned = e.planned_steps or 0
    left = np.where(e.step < planned, planned - 1 - e.step, UNPLANNED * e.step)

    def message(row: int) -> str:
        now = f"the entropy is {percent(float(np.exp(above[row])) * FLOOR)} of what it was at first"
        if above[row] <= 0:
            return f"{now} (limit {percent(FLOOR)})"
        fall = percent(1.0 - float(np.exp(falls[row])))
        return (
            f"{now} and falls by {fall} a step: by step {e.step[row] + int(arrives[row])} it would "
            f"be {percent(FLOOR)} ({_length(e, row)})"
        )

    return Measurement(arrives <= left, arrives, left, message)


def _length(e: Evidence, row: int) -> str:
    if e.planned_steps and e.step[row] < e.planned_steps:
        return f"{e.planned_steps:,} steps are planned"
    return "their planned number is not known"


@once
def grad_explosion(e: Evidence) -> Measurement:
    def message(row: int) -> str:
        return (
            f"the gradient norm is {short(e.column('grad_norm')[row])}, over "
            f"{e.cadence.spans(GRADIENT_WINDOW.recent)} steps {e.grad_ratio[row]:.1f} × its "
            f"trailing median (limit {p.GRADIENT_SURGE:g} ×)"
        )

    limit = d.constant(p.GRADIENT_SURGE, e.grad_ratio)
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
        f"nats/token above that, and either {ENTROPY_HIGH:g} × that lowest or in the median "
        f"{ENTROPY_ONGOING:g} × that of the {ENTROPY_WINDOW.window} steps before the last "
        f"{ENTROPY_WINDOW.gap}; and the logarithm "
        f"over {RISE_STEPS[0]} or {RISE_STEPS[1]} steps {CLEAR_RISE:g} standard errors above its "
        "lowest, by the noise of successive steps.",
        advice="Look at Δ of correct responses and at samples; lower the learning rate if it goes "
        "on.",
        confused_with="A changed data mix or sampling temperature moves the entropy as well; tool "
        "text that counts as the policy's own (mask-lint) raises it at one step.",
        measure=entropy_surge,
        unit="× its lowest",
        for_steps=2,
    ),
    Rule(
        "entropy-floor",
        Severity.WARNING,
        needs=("entropy",),
        meaning=f"The entropy falls so fast that it will be under {percent(FLOOR)} of what it was "
        "at first before the run ends, or is so already: the policy will always sample the same, "
        "and groups of equal rollouts teach nothing.",
        evidence=f"The slope of the entropy's logarithm between the medians of the last {SMOOTH} "
        f"steps and of the {SMOOTH} that ended {FALL_STEPS - SMOOTH} steps before, the nearer to 0 "
        f"by {CLEAR_FALL:g} standard errors (from the noise of successive steps), reaches "
        f"{percent(FLOOR)} of the median of the first {SMOOTH} steps within the planned steps; "
        f"where their number is not known, within {UNPLANNED:g} × as many as there were.",
        advice="Raise the upper clip or the temperature, add an entropy bonus or KL, or lower the "
        "learning rate while there is still something to choose from. Look at zero-signal: what "
        "is always sampled alike has no gradient.",
        confused_with="A policy that is trained to copy or to answer in a fixed format: its "
        "entropy may be this low for good. A sampling temperature that was lowered.",
        measure=entropy_floor,
        unit="steps until then",
        for_steps=10,
        fires_below=True,
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
