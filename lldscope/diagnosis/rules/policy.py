"""Signs of the policy: entropy, gradient, KL, clipping and length, against their usual level. None
of them says that the outcome is lost; while the reward clearly rises they are information."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.numbers import short
from .. import conditions as c
from .. import detectors as d
from .. import usual
from ..evidence import SMOOTH, Evidence, Flags, on_measured, once
from ..outcome import RECOVERED
from ..rule import Measurement, Rule, Severity
from .measures import EARLIER_MAXIMUM, percent

CLIPPED = 0.01  # of the tokens
CLIP_STEPS = 10
FALL_STEPS = 40  # steps over which the slope is taken
VANISHED_STEPS = 5  # in a row
UNPLANNED = 0.5  # × the steps so far: how far is looked ahead where no number is planned
FROM_SURGE = 0.5  # × usual: what falls from a surge to no less is only coming back
FLOOR_BACK = 2.0  # × the floor: then it is over
CLEAR_FALL = 3.0  # standard errors of the slope
MEDIAN_ERROR = 1.2533  # standard error of a median / of a mean, normal distribution
NO_GRADIENT = "Steps whose groups all have equal rewards have no gradient and are left out"
USUAL = (
    f"The median of the last {usual.RECENT} or {SMOOTH} steps is compared with that of up to "
    f"{usual.WINDOW} steps up to {usual.GAP} steps ago; the difference is also {usual.CLEAR:g} "
    f"standard errors, or {usual.MOST:g} times the limit where that is less; until "
    f"{percent(RECOVERED)} of the way is made up."
)


def _sign(
    rule: str, limit: float, what: str, *signals: str, unit: str = "", for_steps: int = 5,
    evidence: str = "", but: Callable[[Evidence], Flags] | None = None, **words: Any,
) -> Rule:
    """The rule for a signal that departs from its usual level by the factor `limit`, unless another
    rule covers the case. With two signals, the one of `tool_use` counts."""
    bound = f"{short(limit, 2) if limit >= 1 else f'1/{1 / limit:.0f}'} ×"

    @once
    def measure(e: Evidence) -> Measurement:
        name = signals[0] if len(signals) == 1 else c.tool_use(e)[0]
        ratio, level, holds = (usual.risen if limit > 1 else usual.fallen)(e, name)

        def message(row: int) -> str:
            times, base = float(ratio[row]), float(level[row])
            if not (times >= limit if limit > 1 else times <= limit):
                return (
                    f"{what} went beyond {bound} the usual {short(base)}{unit} and is not back for "
                    f"good (now {short(base * times)})"
                )
            return (
                f"{what} is {short(base * times)}{unit}, {short(times, 2)} × the usual "
                f"{short(base)} (limit {bound})"
            )

        return Measurement(holds if but is None else holds & ~but(e), ratio, limit, message)

    return Rule(
        rule, signals, measure=measure, unit="× usual", for_steps=for_steps, inside=True,
        evidence=f"{what[4:].capitalize()}: {bound} the usual, or {'more' if limit > 1 else 'less'}"
        f"{evidence}. {USUAL}", **words,
    )


NOW = {
    "response_tokens": "responses of {} tokens",
    "entropy": "an entropy of {} nats/token",
    "grad_norm": "a gradient norm of {}",
    "kl": "a KL to the reference of {} nats/token",
    "valid_searches": "{} valid searches per rollout",
    "tool_calls": "{} tool calls per rollout",
    "n_nonfinite": "numbers that are not finite",
}


def _now(e: Evidence, name: str, row: int) -> str:
    """In words: the signal of a family at a row, and its earlier level."""
    if name == "n_nonfinite":
        return NOW[name]
    if name == "kl":
        departure = usual.kl_explosion(e)
    else:
        high, departure = usual.risen(e, name), usual.fallen(e, name)
        departure = high if high.holds[row] else departure
    base = float(departure.usual[row])
    if not base > 0:
        values = e.so_far(name, row)
        return NOW[name].format(short(values[~np.isnan(values)][-1], 2))
    before = f" (usually {short(base, 2)})"
    return NOW[name].format(short(base * float(departure.ratio[row]), 2)) + before


@once
def gradient_left(e: Evidence) -> Flags:
    """One of the last steps with a gradient had no small fraction of the usual one: where few
    groups differ, the gradient of most steps is small, and the policy learns."""
    level = usual.fallen(e, "grad_norm").usual
    share = usual.gradient_norm(e) / np.where(level > 0, level, np.nan)
    rows = e.cadence.rows(VANISHED_STEPS)
    return on_measured(share, lambda v: d.consecutive(v <= usual.VANISHED), None, 0.0) < rows


@once
def collapse(e: Evidence) -> Measurement:
    """Signs of so many families at once, until at most one is left."""
    of = c.families(e)
    count = np.sum([*of.values()], axis=0, dtype=float)

    def message(row: int) -> str:
        shows = ", ".join(_now(e, name, row) for name, flags in of.items() if flags[row])
        return f"the policy now has {shows}"

    return Measurement(count >= c.FAMILIES, count, c.FAMILIES, message, back=count <= 1)


@once
def clipping(e: Evidence) -> Measurement:
    """More tokens than usual are clipped, and more than a few."""
    rows = e.cadence.rows(CLIP_STEPS)
    share = on_measured(e.column("clip_share"), lambda v: d.trailing_mean(v, rows, rows))
    growth = usual.risen(e, "clip_share")

    def message(row: int) -> str:
        clipped, level = short(100 * share[row], 2), growth.usual[row]
        normal = "" if np.isnan(level) else f"; {short(100 * level, 2)} % is usual in this run"
        steps = e.cadence.spans(CLIP_STEPS)
        return (
            f"{clipped} % of the tokens of {steps} steps were clipped "
            f"(limit {percent(CLIPPED)}){normal}"
        )

    return Measurement(share > CLIPPED, share, CLIPPED, message, grave=growth.holds)


@once
def kl_explosion(e: Evidence) -> Measurement:
    ratio, largest, holds = usual.kl_explosion(e)

    def message(row: int) -> str:
        now, steps = e.column("kl")[row], e.cadence.spans(usual.KL_RECENT)
        if not ratio[row] >= usual.KL_EXPLOSION:
            return f"the KL to the reference is {short(now, 2)} (limit {usual.KL_FAR:g})"
        return (
            f"the KL to the reference over {steps} steps is {short(ratio[row] * largest[row], 2)}, "
            f"{short(ratio[row], 2)} × the largest before (limit {usual.KL_EXPLOSION:g} ×)"
        )

    return Measurement(holds, ratio, usual.KL_EXPLOSION, message)


@once
def entropy_floor(e: Evidence) -> Measurement:
    entropy = e.column("entropy")
    log = np.log(np.where(entropy >= 0, np.fmax(entropy, c.NO_ENTROPY), np.nan))
    smooth = e.cadence.rows(SMOOTH)
    apart = e.cadence.rows(FALL_STEPS - SMOOTH)  # rows between the medians compared

    def level(values: d.Series) -> d.Series:
        return d.trailing_median(values, smooth, smooth)

    def slope(values: d.Series) -> d.Series:
        return (level(values) - d.shifted(level(values), apart)) / (apart * e.cadence.stride)

    def error(values: d.Series) -> d.Series:
        """Standard error of the residuals about the trend: a steep fall is not noise."""
        variance = d.noise_of_means(values - d.trailing_median(values, smooth, smooth))
        return MEDIAN_ERROR * np.sqrt(2 * variance / smooth) / (apart * e.cadence.stride)

    above, few = c.entropy_left(e), e.cadence.rows(usual.RECENT)
    lately = on_measured(entropy, lambda v: d.trailing_median(v, few, few))
    falls, errors = (on_measured(log, f, e.data) for f in (slope, error))
    slowest = falls + CLEAR_FALL * errors
    arrives = np.where(slowest < 0, np.maximum(above, 0.0) / -slowest, np.nan)  # steps from now
    arrives = np.where(above <= 0, 0.0, arrives)
    n_steps = e.planned_steps or 0
    left = np.where(e.step < n_steps, n_steps - 1 - e.step, UNPLANNED * e.step)

    def message(row: int) -> str:
        share = float(np.exp(above[row])) * c.ENTROPY_FLOOR
        now = f"the entropy is {percent(share)} of what it was at first"
        if above[row] <= 0:
            return f"{now} (limit {percent(c.ENTROPY_FLOOR)})"
        if not will_be[row]:  # nearly none, whatever it was at first
            return f"the entropy is {lately[row]:.1g} nats/token (limit {c.NO_ENTROPY:g})"
        fall = percent(1.0 - float(np.exp(falls[row])))
        plan = "how many are planned is not known"
        if e.step[row] < n_steps:
            plan = f"{n_steps:,} steps are planned"
        return (
            f"{now} and falls by {fall} a step: by step {e.step[row] + int(arrives[row])} it would "
            f"be {percent(c.ENTROPY_FLOOR)} ({plan})"
        )

    surge = usual.risen(e, "entropy")
    comes_back = c.recently(e, surge.holds, 1) & (surge.ratio > FROM_SURGE)
    will_be = (arrives <= left) & ~comes_back
    back = ~(above < np.log(FLOOR_BACK))
    return Measurement(will_be | c.entropy_gone(e), arrives, left, message, back=back)


RULES = (
    Rule(
        "policy-collapse", measure=collapse, severity=Severity.CRITICAL,
        needs=("response_tokens", "entropy", "grad_norm", "kl"), unit="kinds of signs", for_steps=5,
        back=True,
        cause="The policy breaks", action="read responses of these steps",
        meaning=f"{c.FAMILIES} kinds of signs show: the policy breaks, whatever the reward does.",
        evidence=f"{c.FAMILIES} of these at once, each as its own rule has it, until only one is "
        "left: responses shrink, grow or are cut more; the entropy is "
        f"{usual.ENTROPY_COLLAPSE:g} × usual or nearly gone; the gradient norm surges or vanishes; "
        "the KL explodes; tool calls stop; numbers were not finite lately.",
        advice="Read responses of these steps. Go back to a checkpoint from before; lower the "
        "learning rate, or add KL.",
        confused_with="A change of data or settings from some step on: declare it as an event.",
    ),
    _sign(
        "entropy-surge", usual.ENTROPY_SURGE, "the entropy", "entropy", unit=" nats/token",
        for_steps=2,
        cause="The entropy rose sharply", action="lower the learning rate if it goes on",
        meaning="The policy has become much less certain than it was. This can pass by itself.",
        evidence=f", and {usual.ENTROPY_GAIN:g} nats/token above it, or twice it where that is "
        "less",
        advice="Read samples and look at Δ; lower the learning rate if the entropy keeps rising.",
        confused_with="Other data or another temperature; tool text in the loss (mask-lint).",
    ),
    Rule(
        "entropy-floor", measure=entropy_floor, needs=("entropy",), unit="steps until then",
        for_steps=5, inside=True,
        cause="The entropy falls towards nothing", action="raise the temperature or the upper clip",
        meaning=f"The entropy is under {percent(c.ENTROPY_FLOOR)} of what it was at first, or will "
        "be before the run ends: all rollouts of a group become the same and teach nothing.",
        evidence=f"The entropy's logarithm, as a line through medians of {SMOOTH} steps now and "
        f"{FALL_STEPS - SMOOTH} steps before, less {CLEAR_FALL:g} standard errors, reaches "
        f"{percent(c.ENTROPY_FLOOR)} of that of the first {SMOOTH} within the planned steps; "
        f"without a plan, within {UNPLANNED:g} × the steps so far.",
        advice="Raise the upper clip or the temperature, add an entropy bonus or KL, or lower the "
        "learning rate.",
        confused_with="A task with one fixed answer format, where the entropy may stay this low; "
        "a temperature that was lowered.",
    ),
    _sign(
        "grad-explosion", usual.GRADIENT_SURGE, "the gradient norm", "grad_norm", for_steps=3,
        cause="The gradient norm rose sharply",
        action="look at the data of these steps, and lower the learning rate if it goes on",
        meaning="The gradient norm before clipping is far above its usual level.",
        evidence=f". {NO_GRADIENT}",
        advice="Check the data of these steps for long or unlikely incorrect responses; lower the "
        "learning rate or the clip if it goes on.",
        confused_with="A smaller batch, or a loss that sums over the tokens of growing responses.",
    ),
    _sign(
        "grad-vanishing", usual.VANISHED, "the gradient norm", "grad_norm", but=gradient_left,
        for_steps=1,
        cause="The gradient vanished", action="check the rewards of the groups and the loss mask",
        meaning="The gradient norm is a small fraction of what it was although rewards still "
        "differ within groups: the updates no longer change the policy.",
        evidence=f", and so is each of the last {VANISHED_STEPS} steps. {NO_GRADIENT}",
        advice="Check that the loss mask is not empty and what the loss is divided by.",
        confused_with="A policy that solves nearly everything (zero-signal), or has almost no "
        "entropy left (entropy-floor).",
    ),
    _sign(
        "length-collapse", usual.SHRUNK, "the response length", "response_tokens", unit=" tokens",
        cause="Responses became much shorter", action="read some short responses",
        meaning="The policy has found a short answer that pays, or one that it cannot leave.",
        advice="Read responses of these steps. If they exploit the reward, fix it and go back to a "
        "checkpoint from before they shrank.",
        confused_with="A length penalty, or shorter questions, from some step on.",
    ),
    _sign(
        "length-growth", usual.GROWN, "the response length", "response_tokens", unit=" tokens",
        but=c.truncation_risen,
        cause="Responses became much longer", action="read some long responses",
        meaning="Where the reward rises, the policy may have learned to think longer; where it "
        "does not, it may have stopped ending its answers.",
        evidence=". Not where truncation has risen, which has a rule of its own",
        advice="Read responses of these steps. If they repeat themselves or never end, check what "
        "the reward pays for, and lower the learning rate.",
        confused_with="Longer questions, one more tool call each, or tool text in the loss "
        "(mask-lint).",
    ),
    _sign(
        "tool-abandoned", usual.ABANDONED, "the number of tool calls per rollout", "valid_searches",
        "tool_calls",
        cause="The policy stopped using its tools", action="read some responses",
        meaning=f"The policy makes under {percent(usual.ABANDONED)} of the tool calls it used to "
        "make.",
        evidence=f". The usual is that of up to {usual.SCALES['valid_searches'].steps} steps, and "
        "counts valid searches where those are recorded",
        advice="Read samples: does it answer without looking, or fail to write a valid call?",
        confused_with="A tool that is switched off: then no call is made from one step on.",
    ),
    Rule(
        "kl-explosion", measure=kl_explosion, needs=("kl",), unit=EARLIER_MAXIMUM, for_steps=3,
        inside=True,
        cause="The policy leaves the reference fast", action="read responses of these steps",
        meaning="The KL to the reference grows much faster than before.",
        evidence=f"Median KL of {usual.KL_RECENT} steps: at least {usual.KL_EXPLOSION:g} × the "
        f"largest up to {usual.KL_EARLIER} steps before (at first a third of the steps so far; "
        f"before step {usual.KL_LEAST} only from {usual.KL_EARLY:g} nats on, later from "
        f"{usual.KL_SMALL:g}); or {usual.KL_FAR:g} nats, at any time.",
        advice="Read responses of these steps: what does the reward pay for? Lower the learning "
        "rate, or raise the KL coefficient.",
        confused_with="A reference that was replaced, or a KL coefficient that was lowered.",
    ),
    Rule(
        "clip-share", measure=clipping, needs=("clip_share",), unit="of the tokens", for_steps=5,
        inside=True,
        cause="More tokens than usual are clipped",
        action="halve the learning rate or make fewer updates per batch",
        meaning="Updates move the policy beyond the clip range. Info if that was so from "
        "the start, a warning if the share has risen.",
        evidence=f"Share of clipped tokens, mean of {CLIP_STEPS} steps: above {percent(CLIPPED)}; "
        f"a warning at {usual.CLIP_RISE:g} × the usual. {USUAL}",
        advice="Halve the learning rate, or make fewer updates per batch.",
        confused_with="A narrower clip range; asynchronous training with old rollouts.",
    ),
)
