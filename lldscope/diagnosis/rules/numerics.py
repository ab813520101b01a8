"""Numbers that are not finite, or differ in engine and trainer; a learning rate that jumped."""

from __future__ import annotations

import numpy as np

from ...core.numbers import percent, short
from .. import detectors as d
from ..evidence import Evidence, once
from ..outcome import DECLINED, outcome, rise
from ..rule import CauseRank, Measurement, Rule, Severity
from .measures import EARLIER_MAXIMUM, REPORTS, mean, over_former_max, restarts

NONFINITE_STEPS = 10
NONFINITE_OFTEN = 0.3  # of these steps, before non-finite numbers explain a fall of the likelihood
GAP = 0.05  # nats/token between engine and trainer
GAP_STEPS = 3
GAP_GROWN = 0.02  # the limit where engine and trainer agreed closely at first, nats/token
GAP_AGREED = 0.002  # median over the first steps that counts as close agreement, nats/token
GAP_FIRST = 20  # measured steps
SHAPE_STEPS = 10  # over which the distribution of the ratios is looked at
SHAPE_NOISE = 4.0  # standard errors
FAR_SLACK = 0.05  # share of tokens
STEP_KL = 0.05  # nats/token
STEP_KL_STEPS = 10
STEP_KL_HELD = (0.017, 0.037)  # of runs that held, on two code bases
STEP_KL_FELL = (0.04, 0.12)  # of runs that fell
GROWN = 30.0  # × the step_kl of the first steps
LR_JUMP = 3.0  # × the largest rate before
LR_LASTS = 50  # steps after which a rate counts as usual
LR_LEAST = 5  # steps with a rate before one can be called a jump


@once
def nonfinite(e: Evidence) -> Measurement:
    count = e.column("n_nonfinite")
    holds = count > 0

    def message(row: int) -> str:
        return (
            f"{count[row]:.0f} of the step's gradient norms, losses, rewards or log-probabilities "
            "were NaN or infinite"
        )

    often = (
        d.trailing_mean(holds.astype(float), e.cadence.rows(NONFINITE_STEPS), 1) >= NONFINITE_OFTEN
    )
    none = np.zeros_like(count)
    return Measurement(holds, count, none, message, explains=holds & often, grave=often)


@once
def engine_mismatch(e: Evidence) -> Measurement:
    gap, recent = e.column("engine_gap"), mean(e, "engine_gap", GAP_STEPS)
    has_gap = ~np.isnan(gap)
    first = np.abs(gap[has_gap][:GAP_FIRST])
    agreed = len(first) == GAP_FIRST and float(np.median(first)) < GAP_AGREED
    limit = np.where((np.cumsum(has_gap) > GAP_FIRST) & agreed, GAP_GROWN, GAP)

    def message(row: int) -> str:
        return (
            f"log π of the engine that sampled is {recent[row]:+.3f} nats/token away from the "
            f"trainer's on the same tokens (limit ±{limit[row]:g})" + _likely_mismatch(e, row)
        )

    return Measurement(np.abs(recent) > limit, np.abs(recent), limit, message)


def _likely_mismatch(e: Evidence, row: int) -> str:
    """What keeps engine and trainer apart, by how the ratios r = π_old/π_behaviour are distributed
    (docs/engines.md); empty where that was not measured."""
    names = ("gap", "k3", "ratio", "chi2", "far_share")
    gap, k3, ratio, chi2, far = (mean(e, f"engine_{n}", SHAPE_STEPS)[row] for n in names)
    if np.isnan(k3 + ratio + far):
        return ""
    noise = SHAPE_NOISE * _noise(e, row, k3)
    if gap < -noise:
        return "; below 0 it is not of the distribution that the engine sampled from"
    # Pinsker: of tokens drawn from π_behaviour this share at most has r > 2 or r < 1/2.
    if far > FAR_SLACK + 3 * np.sqrt(max(gap, 0.0) / 2):
        return (
            f"; {percent(far)} of them differ by more than 2 ×, too many for so close a mean: "
            "scores of other tokens, or another model"
        )
    if 1 - ratio > max(gap / 2, noise) and chi2 < 0:
        return f"; sampling that is cut off (top-p, top-k, min-p) at {percent(ratio)} of the mass"
    by_step = mean(e, "engine_k3", GAP_STEPS)
    now, step_kl = by_step[row], mean(e, "step_kl", STEP_KL_STEPS)[row]
    if now < step_kl / 4:
        return (
            f"; their KL of {short(now, 2)} is far less than a step's, {short(step_kl, 2)}: "
            "precision or kernels"
        )
    first = by_step[np.flatnonzero(~np.isnan(by_step))[:GAP_STEPS][-1]]
    if first > now / 2:
        return "; from the first step on: another temperature, or precision"
    return f"; their KL was {short(first, 2)} at first and is {short(now, 2)}: older weights"


def _noise(e: Evidence, row: int, k3: float) -> float:
    """Standard error of the means of log r and of r: their variance is 2 k3 where r is close to
    1."""
    steps = min(row + 1, e.cadence.rows(SHAPE_STEPS))
    tokens = e.column("tokens_seen")[row] / (row + 1) * steps
    return float(np.sqrt(2 * k3 / tokens)) if tokens > 0 else 0.0


@once
def step_size(e: Evidence) -> Measurement:
    step_kl = mean(e, "step_kl", STEP_KL_STEPS)

    def message(row: int) -> str:
        return (
            f"a step moves the policy by {step_kl[row]:.3f} nats/token, mean of "
            f"{e.cadence.spans(STEP_KL_STEPS)} steps (limit {STEP_KL:g})"
        )

    return Measurement(step_kl >= STEP_KL, step_kl, d.constant(STEP_KL, step_kl), message)


def without_effect(e: Evidence) -> bool:
    """A step moves the policy far more than at first, and the reward has neither risen nor been
    lost: so does a trainer whose weights do not reach the engine that samples."""
    step_kl, change = mean(e, "step_kl", STEP_KL_STEPS), rise(e)
    step_kl = step_kl[~np.isnan(step_kl)]
    has_grown = len(step_kl) > 0 and step_kl[-1] >= GROWN * step_kl[: STEP_KL_STEPS][-1] > 0
    is_lost = outcome(e).share[-1:].min(initial=1.0) < DECLINED
    return has_grown and change is not None and not change.clear and not is_lost


@once
def lr_jump(e: Evidence) -> Measurement:
    lr = e.column("lr")
    ratio = over_former_max(lr, LR_JUMP, LR_LEAST, LR_LASTS, restarts(e, "lr"))

    def message(row: int) -> str:
        return (
            f"the learning rate is {short(lr[row], 2)}, {ratio[row]:.1f} × its earlier maximum "
            f"({short(lr[row] / ratio[row], 2)}; limit {LR_JUMP:g} ×)"
        )

    return Measurement(ratio >= LR_JUMP, ratio, d.constant(LR_JUMP, ratio), message)


RULES = (
    Rule(
        "nonfinite",
        severity=Severity.CRITICAL,
        needs=("n_nonfinite",),
        label="Overflow: NaN or infinite numbers",
        cause="NaN or infinite numbers",
        action="look for overflow and empty masks",
        back=True,
        meaning="A gradient norm, loss, entropy, reward or log-probability was NaN or infinite.",
        evidence="Count of non-finite numbers among the step's updates and sums. Critical where "
        f"{percent(NONFINITE_OFTEN)} of {NONFINITE_STEPS} steps have one.",
        advice="Check for overflow (bf16, log of 0, empty masks); resume from the last checkpoint "
        "before.",
        confused_with="Nothing: it counts what was recorded.",
        measure=nonfinite,
        unit="non-finite numbers",
        false_alarms=REPORTS,
        rank=CauseRank.SECONDARY,
    ),
    Rule(
        "engine-mismatch",
        needs=("engine_gap",),
        label="Sampling engine and trainer disagree",
        cause="Sampling engine and trainer disagree",
        action="check weight sync and precision",
        back=True,
        meaning="The engine that samples and the trainer give the same tokens different "
        "probabilities.",
        evidence=f"Mean of log π_behaviour − log π_old over action tokens, {GAP_STEPS} steps: "
        f"beyond ±{GAP:g} nats/token, or ±{GAP_GROWN:g} where the median of the first {GAP_FIRST} "
        f"steps was within ±{GAP_AGREED:g}. Its expectation is KL(behaviour ‖ old).",
        advice="Check weight sync, precision and the sampling settings of the engine.",
        confused_with="Asynchronous training, where the engine is some versions behind on purpose; "
        "log-probabilities that the engine reports after top-p or temperature.",
        measure=engine_mismatch,
        unit="nats/token",
        for_steps=3,
        rank=CauseRank.TERTIARY,
    ),
    Rule(
        "step-size",
        severity=Severity.INFO,
        needs=("step_kl",),
        cause="Steps move the policy far",
        action="halve the learning rate",
        meaning="A step moves the policy as far as in runs that went on to fall.",
        evidence=f"Mean of step_kl over {STEP_KL_STEPS} steps: {STEP_KL:g} nats/token or more. On "
        f"two code bases runs that fell were at {STEP_KL_FELL[0]} to {STEP_KL_FELL[1]}, runs that "
        f"held at {STEP_KL_HELD[0]} to {STEP_KL_HELD[1]}.",
        advice="Halve the learning rate, or make fewer updates per batch.",
        confused_with="Sampling with top-p < 1, which biases the estimate upwards; asynchronous "
        "training with many updates on old rollouts.",
        measure=step_size,
        unit="nats/token",
        for_steps=3,
    ),
    Rule(
        "lr-jump",
        needs=("lr",),
        label="Learning rate jumped",
        cause="The learning rate jumped",
        action="lower the learning rate",
        back=True,
        meaning="A schedule, a batch size or a resume that the learning rate was not scaled for.",
        evidence=f"Learning rate of at least {LR_JUMP:g} × its earlier maximum, once {LR_LEAST} "
        "steps have had one.",
        advice="Go back to a checkpoint from before and lower the rate; scale it with the batch.",
        confused_with="Nothing, unless the jump was meant: declare it as an event `lr_change`.",
        measure=lr_jump,
        unit=EARLIER_MAXIMUM,
        false_alarms=REPORTS,
        rank=CauseRank.PRIMARY,
    ),
)
