"""Rules about how a run is doing. They say that something is wrong, not why."""

from __future__ import annotations

from ...core.numbers import short
from ...signals import detectors as d
from ...signals import phases as p
from ...signals.evidence import SMOOTH, Evidence, Flags, once
from ..rule import Rule
from .measures import column, mean, normalized_reward, percent

ENTROPY_RISE = 1.5  # × its lowest ten-step mean …
ENTROPY_GOING = 1.2  # … and × its trailing median: one that stays where it is has ended
ABANDONED = 0.33  # × trailing median of the valid searches
NO_SIGNAL = 0.95  # of the groups, mean over …
NO_SIGNAL_STEPS = 10


@once
def _searches_left(e: Evidence) -> d.Series:
    return d.over_median(e.column("valid_searches"), 5, 5, 50, 15)


def _entropy_rises(e: Evidence) -> Flags:
    risen = (e.entropy_rise >= ENTROPY_RISE) & (e.entropy_gain >= p.ENTROPY_GAIN)
    return risen & (e.entropy_ratio >= ENTROPY_GOING)


def _entropy(e: Evidence, t: int) -> str:
    return (
        f"the entropy is {e.entropy_rise[t]:.1f} × its lowest, {e.entropy_gain[t]:.2f} nats/token "
        f"above it, and {e.entropy_ratio[t]:.1f} × its trailing median (limits {ENTROPY_RISE:g} ×, "
        f"{p.ENTROPY_GAIN:g} and {ENTROPY_GOING:g} ×)"
    )


def _gradient(e: Evidence, t: int) -> str:
    return (
        f"the gradient norm is {short(e.column('grad_norm')[t])}, over two steps "
        f"{e.grad_ratio[t]:.1f} × its trailing median (limit {p.GRAD_BREAKOUT:g} ×)"
    )


def _reward(e: Evidence, t: int) -> str:
    left = e.normalized_mean[t] / e.normalized_peak[t]
    return (
        f"{normalized_reward(e, t)} is {e.normalized_mean[t]:.2f} over {SMOOTH} steps, "
        f"{percent(left)} of its best ({e.normalized_peak[t]:.2f}; "
        f"limit {percent(p.crash_limit(e)[t])})"
    )


def _searches(e: Evidence, t: int) -> str:
    now = mean("valid_searches", 5)(e)[t]
    return (
        f"{now:.2f} valid searches per rollout over five steps, {percent(_searches_left(e)[t])} of "
        f"the trailing median (limit {percent(ABANDONED)})"
    )


def _no_signal(e: Evidence, t: int) -> str:
    share = mean("zero_signal_share", NO_SIGNAL_STEPS)(e)[t]
    return (
        f"in {percent(share)} of the groups of {NO_SIGNAL_STEPS} steps all rewards were equal "
        f"(limit {percent(NO_SIGNAL)}); the mean reward was {e.reward[t]:.2f}"
    )


SYMPTOMS: tuple[Rule, ...] = (
    Rule(
        "entropy-surge",
        "warning",
        needs=("entropy",),
        meaning="The entropy of the policy has left its usual range upwards. It can subside by "
        "itself.",
        evidence="Mean entropy over action tokens, the last three steps: at least 1.5 × its lowest "
        "ten-step mean so far, 0.1 nats/token above that, and 1.2 × the median of the 50 steps "
        "before the last ten.",
        advice="Look at Δ of correct responses and at samples; lower the learning rate if it goes "
        "on.",
        confused_with="A changed data mix or sampling temperature moves the entropy as well; tool "
        "text that counts as the policy's own (mask-lint) raises it at one step.",
        holds=lambda e, phases: _entropy_rises(e),
        value=lambda e: e.entropy_rise,
        threshold=lambda e: ENTROPY_RISE,
        unit="× its lowest",
        for_steps=2,
        message=_entropy,
    ),
    Rule(
        "grad-explosion",
        "warning",
        needs=("grad_norm",),
        meaning="The gradient norm before clipping has left its usual range.",
        evidence="Median gradient norm of the step's updates: the last two steps, at least 3 × the "
        "median of the 30 steps before the last five.",
        advice="Check the data of these steps; lower the learning rate or the clip if it goes on.",
        confused_with="Steps after many without a gradient (zero-signal): the trailing median is "
        "then small, and a usual norm looks large.",
        holds=lambda e, phases: p.gradient_breaks_out(e),
        value=lambda e: e.grad_ratio,
        threshold=lambda e: p.GRAD_BREAKOUT,
        unit="× trailing median",
        for_steps=3,
        message=_gradient,
    ),
    Rule(
        "reward-crash",
        "critical",
        needs=("reward",),
        meaning="The reward has lost more than half of its best ten-step mean, or less beside a "
        "break-out of gradient norm or entropy. This says that the run is dying, not why.",
        evidence="Trailing ten-step mean of the reward against the best such mean so far: under "
        "half, under 0.7 of it within 40 steps of a break-out of gradient norm or entropy, under "
        "0.9 after a gradient norm of 100 × its median. A reward that can be negative has no such "
        "shares: the share of correct responses stands for it, or else the reward above the least "
        "it can be (−1, or the lowest so far).",
        advice="Stop and look at the look-alikes: a dead tool, truncation and a mask bug look the "
        "same here.",
        confused_with="Harder questions from some step on (a curriculum, another data mix).",
        holds=lambda e, phases: p.reward_crashed(e),
        value=lambda e: e.normalized_mean / e.normalized_peak,
        threshold=p.crash_limit,
        unit="of the best ten-step mean",
        for_steps=5,
        message=_reward,
    ),
    Rule(
        "tool-abandoned",
        "warning",
        needs=("valid_searches",),
        meaning="The policy makes less than a third of the searches it used to make.",
        evidence="Mean valid searches per rollout: the last five steps, under 0.33 of the median "
        "of the 50 steps before.",
        advice="Look at samples: does it answer without looking, or fail to write a valid search?",
        confused_with="A tool that is switched off: then no search is made from one step on.",
        holds=lambda e, phases: _searches_left(e) < ABANDONED,
        value=_searches_left,
        threshold=lambda e: ABANDONED,
        unit="of the trailing median",
        for_steps=5,
        message=_searches,
    ),
    Rule(
        "zero-signal",
        "warning",
        needs=("zero_signal_share",),
        meaning="Nearly all groups have the same reward throughout: they carry no gradient, and "
        "the step trains on almost nothing. All wrong, or all solved: the reward says which.",
        evidence="Share of groups whose rewards are all equal, mean over ten steps: above 95 %.",
        advice="All wrong: check the reward and the answer format, or take easier questions. All "
        "solved: take harder ones. Larger groups help in both cases.",
        confused_with="Nothing: it counts what was recorded.",
        holds=lambda e, phases: mean("zero_signal_share", NO_SIGNAL_STEPS)(e) > NO_SIGNAL,
        value=mean("zero_signal_share", NO_SIGNAL_STEPS),
        threshold=lambda e: NO_SIGNAL,
        unit="of the groups",
        for_steps=NO_SIGNAL_STEPS,
        false_alarms="none: it reports what was recorded",
        message=_no_signal,
    ),
    Rule(
        "nonfinite",
        "critical",
        needs=("n_nonfinite",),
        meaning="A gradient norm, loss, entropy, reward or log-probability was NaN or infinite.",
        evidence="Count of non-finite numbers among the step's updates and sums.",
        advice="Check for overflow (bf16, log of 0, empty masks); resume from the last checkpoint "
        "before.",
        confused_with="Nothing: it counts what was recorded.",
        holds=lambda e, phases: e.column("n_nonfinite") > 0,
        value=column("n_nonfinite"),
        threshold=lambda e: 0.0,
        unit="updates or sums",
        false_alarms="none: it reports what was recorded",
        message=lambda e, t: (
            f"{e.column('n_nonfinite')[t]:.0f} of the step's gradient norms, losses, rewards or "
            "log-probabilities were NaN or infinite"
        ),
    ),
)
