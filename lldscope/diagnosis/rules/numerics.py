"""Numbers that are not finite; differences between engine and trainer; updates without effect;
jumps of the learning rate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.numbers import percent, short
from .. import detectors as d
from ..conditions import CUT, recently
from ..evidence import Evidence, on_measured, once
from ..outcome import DECLINED, outcome, rise
from ..rule import CauseRank, Measurement, Rule, Severity
from ..usual import TINY
from . import measures as m

IDLE_STEPS = 10  # without an update
IDLE_CHANCE = 0.01  # that these are steps whose groups all have equal rewards, at most
EQUAL_GROUPS = 0.9  # chance of such a step where the log does not say whether rewards differ
NONFINITE_STEPS = 10
NONFINITE_OFTEN = 0.3  # of these steps, before non-finite numbers explain a fall of the likelihood
GAP_STEPS = 3
GAP_FIRST = 20  # measured steps
GAP_GROWN = 2.0  # × the gap at first: it is not a setting
LEFT = 0.67  # of the reward: it had fallen
OLD = 0.5  # versions of the policy: a smaller age explains no growth
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
def idle(e: Evidence) -> Measurement:
    """The number of steps in a row, up to each row, with a gradient or learning rate of 0 although
    rewards differed."""
    stride, least = e.cadence.stride, e.cadence.rows(IDLE_STEPS)
    norm, deviation = e.column("grad_norm"), e.column("reward_sd")
    # A row may stand for several steps, or a part of its batch: the share is the chance at most
    # that the gradient of one of them is rightly 0.
    chance = on_measured(e.column("zero_signal_share"), lambda share: share)
    by_spread = np.where(np.isnan(deviation), EQUAL_GROUPS, np.where(deviation > 0, 0.0, 1.0))
    chance = np.where(np.isnan(chance), by_spread, chance)

    def stretches(values: d.Series) -> d.Series:
        on = d.consecutive(values[0] <= TINY)
        log = d.total(np.log(np.fmax(values[1], 1e-9)))
        log = log - d.last(log, on == 0, 0.0)  # since the last row before the stretch
        return np.where(log <= np.log(IDLE_CHANCE), on, 0.0)

    def zero_rows(rate: d.Series) -> d.Series:
        return d.consecutive(rate == 0).astype(np.float64)

    lr = e.column("lr")
    without_gradient = on_measured(np.stack([norm, chance]), stretches, before=0.0)
    at_rate_0 = on_measured(lr, zero_rows, before=0.0)
    rows, by_rate = np.fmax(without_gradient, at_rate_0), at_rate_0 >= without_gradient
    steps = np.where(np.isnan(norm) & np.isnan(lr), np.nan, rows * stride)
    cut = m.mean(e, "truncated_share", IDLE_STEPS)

    def message(row: int) -> str:
        zero = f"was 0 in each of {steps[row]:,.0f} steps"
        if by_rate[row]:
            return f"the learning rate {zero}: the weights did not change"
        differ = "" if chance[row] == EQUAL_GROUPS else ", and rewards differed within groups"
        share = f"; {percent(cut[row])} of the responses were cut" if cut[row] >= CUT else ""
        return f"the gradient norm {zero}{differ}: the weights did not change{share}"

    return Measurement(
        rows >= least, steps, least * stride, message,
        advice=lambda row: RATE_0 if by_rate[row] else NO_GRADIENT,
    )


RATE_0 = (
    "Look at the schedule: warm-up and total steps, the optimizer's groups, what a resume loaded."
)
NO_GRADIENT = (
    "Look for weights that are frozen or an adapter that is not attached, a loss mask that covers "
    "every token (or every truncated response), and updates that are skipped."
)


class Scale(NamedTuple):
    """Tolerance for the difference between engine and trainer, by one signal. Above `limit` the
    alarm fires at any time; after GAP_FIRST steps also above `growth` × the median of the first
    steps, or `least` if that is larger. `what` formats the signal's name with its value."""

    limit: float
    least: float
    growth: float
    what: str
    unit: str = "nats/token"


# The first that is recorded is judged. A divergence grows as the square of a difference.
SCALES = {
    "engine_gap": Scale(0.05, 0.02, 5.0, "log π of the engine that sampled is {:+.3f} nats/token "
                        "away from the trainer's on the same tokens"),
    "engine_k3": Scale(0.05, 0.005, 5.0, "the KL between the engine that samples and the trainer "
                       "is {:.2g} nats/token"),
    "engine_diff": Scale(0.1, 0.05, 3.0, "log π of engine and trainer differ by {:.2g} nats/token "
                         "on average"),
    "engine_prob_diff": Scale(0.05, 0.02, 3.0, "the probabilities that engine and trainer give to "
                              "a token differ by {:.2g} on average", "of probability"),
}


@once
def engine_mismatch(e: Evidence) -> Measurement:
    """The engine differs from the trainer. A gap that grew is no cause if the reward had fallen
    before, or if the entropy grew as much: a policy that breaks widens the gap."""
    each = np.stack([_gap(e, name, scale) for name, scale in SCALES.items()])
    judged = np.argmax(~np.isnan(each[:, 0]), axis=0)  # of SCALES, at each row
    level, first, limit = np.take_along_axis(each, judged[None, None], 0)[0]
    growth = np.abs(level / first)
    entropy = np.divide(*_now_and_first(e, "entropy"))
    fell = recently(e, m.reward_fell(e) & (m.reward_left(e) < LEFT), 1)
    breaks = (growth >= GAP_GROWN) & (fell | (growth < GAP_GROWN * entropy))
    kinds = _Kinds.of(e)

    def message(row: int) -> str:
        name = list(SCALES)[judged[row]]
        gap = SCALES[name].what.format(level[row])
        plus = "±" if name == "engine_gap" else ""
        kind = kinds.likely(e, row)
        if not kind and growth[row] >= GAP_GROWN:
            why = ", and grew as the policy broke" if breaks[row] else f": {kinds.older(row)}"
            kind = f"; it was {short(abs(first[row]), 2)} at first{why}"
        kind = kind or "; from the first step on: another temperature, precision or kernels"
        return f"{gap} (limit {plus}{short(limit[row], 2)}){kind}"

    over = np.abs(level) > limit
    return Measurement(
        over, np.abs(level), limit, message, explains=over & ~breaks, grave=over,
        unit=lambda row: list(SCALES.values())[judged[row]].unit,
    )


def _now_and_first(e: Evidence, name: str) -> d.Series:
    """The median of the last steps (one token can make a KL large) and of the first steps: (2,
    N)."""
    rows = e.cadence.rows(GAP_STEPS)

    def statistics(values: d.Series) -> d.Series:
        level = d.trailing_median(values, rows, 1)
        return np.stack([level, d.from_first(level, rows)])

    return on_measured(e.column(name), statistics, series=2)


def _gap(e: Evidence, name: str, scale: Scale) -> d.Series:
    """The rows of `_now_and_first`, and the limit: (3, N)."""
    least = e.cadence.rows(GAP_FIRST)

    def limit(values: d.Series) -> d.Series:
        usual = d.from_first(d.trailing_median(np.abs(values), least, 1), least)
        later = np.clip(scale.growth * usual, scale.least, scale.limit)
        return np.where(d.numbered(values) < least, scale.limit, later)

    return np.stack([*_now_and_first(e, name), on_measured(e.column(name), limit)])


class _Kinds(NamedTuple):
    """Means of the signals that distinguish the kinds of mismatch."""

    age: d.Series
    ratios: list[d.Series]
    now: d.Series
    step_kl: d.Series

    @classmethod
    def of(cls, e: Evidence) -> _Kinds:
        names = ("gap", "k3", "ratio", "chi2", "far_share")
        return cls(
            m.mean(e, "rollout_age", SHAPE_STEPS),
            [m.mean(e, f"engine_{name}", SHAPE_STEPS) for name in names],
            m.mean(e, "engine_k3", GAP_STEPS), m.mean(e, "step_kl", STEP_KL_STEPS),
        )

    def older(self, row: int) -> str:
        """Why the weights may be older, using the age of rollouts if known."""
        age, why = self.age[row], "new ones do not reach the engine"
        if not age < OLD:
            why += ", or rollouts are old on purpose"
            why += "" if np.isnan(age) else f": {age:.1f} versions"
        return f"older weights ({why})"

    def likely(self, e: Evidence, row: int) -> str:
        """The likely kind of mismatch, by the distribution of the ratios r = π_old/π_behaviour
        (docs/engines.md); empty if the ratios do not tell."""
        gap, k3, ratio, chi2, far = (series[row] for series in self.ratios)
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
            mass = f"{percent(ratio)} of the mass"
            return f"; sampling that is cut off (top-p, top-k, min-p) at {mass}"
        now, step_kl = self.now[row], self.step_kl[row]
        if now < step_kl / 4:
            return (
                f"; their KL of {short(now, 2)} is far less than a step's, {short(step_kl, 2)}: "
                "precision or kernels"
            )
        return ""


def _noise(e: Evidence, row: int, k3: float) -> float:
    """Standard errors of the means of log r and of r: both variances are 2 k3 if r is close to
    1."""
    rows = e.start + row + 1
    steps = min(rows, e.cadence.rows(SHAPE_STEPS))
    tokens = e.column("tokens_seen")[row] / rows * steps
    return float(np.sqrt(2 * k3 / tokens)) if tokens > 0 else 0.0


@once
def step_size(e: Evidence) -> Measurement:
    step_kl = m.mean(e, "step_kl", STEP_KL_STEPS)

    def message(row: int) -> str:
        return (
            f"a step moves the policy by {step_kl[row]:.3f} nats/token, mean of "
            f"{e.cadence.spans(STEP_KL_STEPS)} steps (limit {STEP_KL:g})"
        )

    return Measurement(step_kl >= STEP_KL, step_kl, STEP_KL, message)


def without_effect(e: Evidence) -> bool:
    """A step moves the policy far more than at first, and the reward has neither risen nor been
    lost: a sign that the trainer's weights do not reach the engine."""
    now, first = _step_kl(e)[:, -1] if len(e.step) else np.full(2, np.nan)
    change, is_lost = rise(e), outcome(e).share[-1:].min(initial=1.0) < DECLINED
    has_grown = now >= GROWN * first > 0
    return bool(has_grown) and change is not None and not change.clear and not is_lost


@once
def _step_kl(e: Evidence) -> d.Series:
    """Mean `step_kl` over the last steps and over the first, (2, N)."""
    step_kl = m.mean(e, "step_kl", STEP_KL_STEPS)
    return on_measured(
        step_kl, lambda v: np.stack([v, d.from_first(v, STEP_KL_STEPS)]), series=2
    )


@once
def lr_jump(e: Evidence) -> Measurement:
    lr = e.column("lr")
    ratio = m.over_former_max(lr, LR_JUMP, LR_LEAST, LR_LASTS, m.restarts(e, "lr"))

    def message(row: int) -> str:
        return (
            f"the learning rate is {short(lr[row], 2)}, {ratio[row]:.1f} × its earlier maximum "
            f"({short(lr[row] / ratio[row], 2)}; limit {LR_JUMP:g} ×)"
        )

    return Measurement(ratio >= LR_JUMP, ratio, LR_JUMP, message)


RULES = (
    Rule(
        "nonfinite", measure=nonfinite, severity=Severity.CRITICAL, needs=("n_nonfinite",),
        unit="non-finite numbers", rank=CauseRank.SECONDARY, back=True,
        cause="NaN or infinite numbers", action="look for overflow and empty masks",
        meaning="A gradient norm, loss, entropy, reward or log-probability was NaN or infinite.",
        evidence="Count of non-finite numbers among the step's updates and sums. Critical where "
        f"{percent(NONFINITE_OFTEN)} of {NONFINITE_STEPS} steps have one.",
        advice="Check for overflow (bf16, log of 0, empty masks); resume from the last checkpoint "
        "before.",
        confused_with="Nothing: it counts what was recorded.",
        promise=m.REPORTS,
    ),
    Rule(
        "no-update", measure=idle, needs=("grad_norm", "lr"), unit="steps", inside=True,
        cause="Nothing is trained", action="look at what is frozen, the loss mask and the schedule",
        meaning="The steps do not change the policy: the gradient or the learning rate is 0, and "
        "it is not because all rewards of each group are equal.",
        evidence=f"A gradient norm, or a learning rate, of exactly 0 in {IDLE_STEPS} steps in a "
        "row. Gradients count where groups with equal rewards alone explain that with a chance of "
        f"{percent(IDLE_CHANCE)} at most.",
        advice=f"{NO_GRADIENT} {RATE_0}",
        confused_with="A log that rounds: a learning rate printed as 0.000; a name that is logged "
        "and never measured.",
    ),
    Rule(
        "engine-mismatch", measure=engine_mismatch, needs=tuple(SCALES), unit="nats/token",
        for_steps=3, rank=CauseRank.TERTIARY, back=True,
        cause="Sampling engine and trainer disagree", action="check weight sync and precision",
        meaning="The engine that samples and the trainer give the same tokens different "
        "probabilities.",
        evidence=f"Median of {GAP_STEPS} steps of the first of these that is recorded: mean log "
        "π_behaviour − log π_old, whose expectation is KL(behaviour ‖ old); that KL by k3; the "
        "mean size of the difference, which is no KL; the same of probabilities. At any time: "
        f"{', '.join(f'`{n}` {s.limit:g}' for n, s in SCALES.items())}. After {GAP_FIRST} steps "
        "also 5 × their median, 3 × for differences, if that is "
        f"{', '.join(f'{s.least:g}' for s in SCALES.values())} or more.",
        advice="From the first step on: compare temperature, top-p, precision, kernels and chat "
        "template of both. Growing: check that new weights, or the adapter, reach the engine.",
        confused_with="Asynchronous training, where the engine is some versions behind on purpose; "
        "log-probabilities that the engine reports after top-p or temperature; a policy that "
        f"breaks: where the reward had lost {percent(1 - LEFT)} by then, or the entropy grows as "
        "much, a gap that grows is no cause.",
    ),
    Rule(
        "step-size", measure=step_size, severity=Severity.INFO, needs=("step_kl",),
        unit="nats/token", for_steps=3,
        cause="Steps move the policy far", action="halve the learning rate",
        meaning="A step moves the policy as far as in runs that went on to fall.",
        evidence=f"Mean of step_kl over {STEP_KL_STEPS} steps: {STEP_KL:g} nats/token or more. On "
        f"two code bases runs that fell were at {STEP_KL_FELL[0]} to {STEP_KL_FELL[1]}, runs that "
        f"held at {STEP_KL_HELD[0]} to {STEP_KL_HELD[1]}.",
        advice="Halve the learning rate, or make fewer updates per batch.",
        confused_with="Sampling with top-p < 1, which biases the estimate upwards; asynchronous "
        "training with many updates on old rollouts.",
    ),
    Rule(
        "lr-jump", measure=lr_jump, needs=("lr",), unit=m.EARLIER_MAXIMUM, rank=CauseRank.PRIMARY,
        back=True,
        cause="The learning rate jumped", action="lower the learning rate",
        meaning="A schedule, a batch size or a resume that the learning rate was not scaled for.",
        evidence=f"Learning rate of at least {LR_JUMP:g} × its earlier maximum, once {LR_LEAST} "
        "steps have had one.",
        advice="Go back to a checkpoint from before and lower the rate; scale it with the batch.",
        confused_with="Nothing, unless the jump was meant: declare it as an event `lr_change`.",
        promise=m.REPORTS,
    ),
)
