"""The sentences of a post-mortem: what happened, in at most five, and what the log cannot tell."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import numpy as np

from ..core.numbers import number, percent
from ..core.safe_text import in_one_line
from ..diagnosis.assess import Assessment
from ..diagnosis.changepoints import Boundary
from ..diagnosis.conditions import LEAST
from ..diagnosis.rules.measures import is_observed
from ..monitor.alerts import AnyAlert
from .facts import PostMortem
from .onset_order import Link

# What the log cannot tell if a signal was never measured.
_WITHOUT = (
    ("delta_correct", "How far each step's updates moved the likelihood of its responses (Δ): no "
     "re-score after the last update is recorded. Phases and alarms have weaker evidence."),
    ("correct_logp", "Whether correct responses lost likelihood: there are no log-probabilities "
     "of the trainer's policy, or no response was correct."),
    ("entropy", "When the entropy rose sharply: it is not recorded."),
    ("grad_norm", "When the gradients rose sharply: their norm is not recorded."),
    ("good_first_action_share", "How often an incorrect rollout began with a good first action: "
     "the documents of the tool calls are not recorded."),
    ("incorrect_error_norm", "Which incorrect responses pushed most: prediction errors are not "
     "recorded."),
    ("engine_gap", "Whether the sampling engine agreed with the trainer: its log-probabilities "
     "are not recorded."),
    ("kl", "How far the policy went from the reference: KL is not recorded."),
    ("tool_fail_share", "Whether the tools answered: it is not recorded."),
)

# What happened to each signal, and that it did not.
_LINKS = {
    "likelihood": ("the likelihood of correct responses fell", "the likelihood never fell"),
    "entropy": ("the entropy rose sharply", "the entropy never rose sharply"),
    "gradient": ("the gradient norm rose sharply", "the gradient norm never rose sharply"),
    "reward": ("the reward broke down", "the reward never crashed"),
}


def date(seconds: float | None) -> str:
    """A Unix time as a date of UTC, to the minute."""
    if seconds is None:
        return "an unknown time"
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def when(facts: PostMortem, step: int | None) -> str:
    """A step and its date: the time of day alone where it is the day on which the run began."""
    seconds = facts.dates.get(str(step))
    if seconds is None:
        return f"step {step}"
    at, began = date(seconds), date(facts.run.first_time)
    return f"step {step} ({at[11:] if at[:10] == began[:10] else at})"


def duration(seconds: float) -> str:
    """Seconds in the unit that people would choose."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (unit == "min" and seconds >= 60):
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def interval(b: Boundary | Link) -> str:
    """The 95 % interval of a boundary or an onset; empty without one."""
    return "" if b.low is None else f" (95 %: {b.low}–{b.high})"


# -- five sentences -------------------------------------------------------------------------------


def summary(facts: PostMortem) -> list[str]:
    """What happened, in at most five sentences."""
    if facts.kind == "empty":
        return [
            f"{facts.run.name} has recorded no step yet, so there is nothing to report.",
            _life(facts),
        ]
    parts = (_course, _reward, _likelihood, _order, _warning)
    return [sentence for part in parts if (sentence := part(facts))]


def _course(facts: PostMortem) -> str:
    run = facts.run
    first, last = run.first_time, run.last_time
    steps = "1 step" if run.n_steps == 1 else f"{run.n_steps:,} steps"
    period = (
        ""
        if first is None or last is None
        else f" in {duration(last - first)}, from {date(first)} to {date(last)}"
    )
    return f"{run.name} recorded {steps} ({run.first_step}–{run.last_step}){period}; {_life(facts)}"


def _life(facts: PostMortem) -> str:
    state = facts.state
    why = f" ({in_one_line(state.reason)})" if state.reason else ""
    return {
        "live": "it is still running, and this report is as of its last row.",
        "finished": f"it ended{why}." if why else "it finished normally.",
        "stopped": f"it was stopped{why}.",
        "failed": f"it failed{why}.",
        "stalled": f"it makes no more steps{why}.",
    }[state.life]


def _reward(facts: PostMortem) -> str:
    reward = facts.outline.get("reward")
    if reward is None:
        return "The reward was not recorded."
    return (
        f"Its reward (ten-step mean) began at {number(reward.start)}, was best at "
        f"{when(facts, reward.highest_step)} with {number(reward.highest)}, and is "
        f"{number(reward.end)} at the end."
    )


def _likelihood(facts: PostMortem) -> str:
    kind = facts.kind
    if kind in ("collapsed", "decayed"):
        return _fall(facts)
    if kind == "short":
        return f"There are too few steps to judge: {LEAST} with measurements are needed."
    if facts.supported:
        causes = " and ".join(facts.supported)
        return f"The log supports {causes} as the cause of what went wrong, and not LLD."
    if kind == "failed":
        return "Something is wrong, but the log does not say why."
    if facts.state.evidence == "symptoms":
        return (
            f"{_symptoms(facts)} nothing wrong; likelihood was not recorded, so LLD itself cannot "
            "be judged."
        )
    basis = "Δ" if facts.state.evidence == "delta" else "levels"
    return f"Judged on {basis}, no decay of correct responses was shown, and {_quiet(facts)}."


def _symptoms(facts: PostMortem) -> str:
    """Subject and verb: what was recorded besides the likelihood."""
    words = {"reward": "reward", "entropy": "entropy", "grad_norm": "gradient norm"}
    names = [word for signal, word in words.items() if signal in facts.outline]
    if len(names) < 2:
        return f"The {names[0]} alone shows" if names else "What was recorded shows"
    return f"{', '.join(names[:-1])} and {names[-1]} show".capitalize()


def _quiet(facts: PostMortem) -> str:
    """Which alarms did not fire in a run without decay."""
    if not facts.alarms:
        return "no alarm fired"
    notes = [a.rule for a in facts.alarms if a.severity == "info"]
    if facts.kind == "alarmed" or not notes:
        return "no decay alarm fired"
    return f"no warning fired; for information: {', '.join(notes)}"


def _fall(facts: PostMortem) -> str:
    decays = [b for b in facts.boundaries if b.phase == "decay"]
    if decays:
        b = decays[0]
        span = f"from {when(facts, b.step)} on{interval(b)}, seen with hindsight"
        span += f" and recognised live at {when(facts, b.live)}"
    else:
        span = f"from {when(facts, facts.fall)} on, as the live classifier saw it"
    if facts.collapse is not None:
        end = f" and at {when(facts, facts.collapse)} this had become a collapse"
    elif facts.state.phase == "recovered":
        end = " and the run recovered"
    else:
        end = " and no collapse followed" if facts.state.life != "live" else " so far"
    return f"Correct responses lost likelihood {span},{end}."


def _order(facts: PostMortem) -> str:
    """What is only known to have begun about when another thing did is not put in an order."""
    onsets = [link for link in facts.links if link.seen is not None]
    if not onsets:
        return ""
    broke = f"{_LINKS[onsets[0].link][0]} from {when(facts, onsets[0].start)}{interval(onsets[0])}"
    for before, link in pairwise(onsets):
        certain = None not in (before.high, link.low) and (before.high or 0) < (link.low or 0)
        word = "then" if certain else "and about then (which came first is not certain)"
        broke += f", {word} {_LINKS[link.link][0]} from {when(facts, link.start)}{interval(link)}"
    never = [_LINKS[x.link][1] for x in facts.links if x.measured and x.seen is None]
    rest = f"; {' and '.join(never)}" if never else ""
    return f"What broke: {broke}{rest}."


def _warning(facts: PostMortem) -> str:
    graver = [a for a in facts.alarms if a.severity != "info"]
    alarms = [a for a in graver if a.rule != "stalled" and a.step is not None]
    if not alarms:
        if any(a.rule == "stalled" for a in graver):
            only = "only alarm" if graver == facts.alarms else "only warning"
            return f"The {only} is that the run makes no more steps."
        if facts.kind in ("healthy", "short"):
            return ""
        return "No warning fired." if facts.alarms else "No alarm fired."
    first = min(alarms, key=lambda alarm: alarm.step or 0)
    moment = when(facts, first.step)
    for name, end in (("the collapse", facts.collapse), ("the reward crashed", facts.reward_crash)):
        if before := lead(facts, first, end):
            return f"The first alarm, {first.rule} at {moment}, came {before} before {name}."
    return f"The first alarm was {first.rule} at {moment}."


def lead(facts: PostMortem, alarm: AnyAlert, end: int | None) -> str:
    """Steps and minutes from an alarm to the step `end`; empty if it came later."""
    steps, minutes = facts.lead(alarm, end)
    if steps is None:
        return ""
    time = "" if minutes is None else f" ({duration(60 * minutes)})"
    return f"{steps} step{'' if steps == 1 else 's'}{time}"


# -- what this log cannot tell --------------------------------------------------------------------


def limits(assessment: Assessment, facts: PostMortem) -> list[str]:
    """What this log cannot tell, and why."""
    e = assessment.evidence
    if not len(e.step):
        return ["Anything: no step is recorded."]
    unknown = [sentence for name, sentence in _WITHOUT if not is_observed(e, name)]
    deltas = e.column("n_delta_correct")
    correct = np.nansum(e.column("success") * e.column("n_responses"))
    if is_observed(e, "delta_correct") and correct > 0:
        share = float(deltas[deltas == deltas].sum()) / float(correct)
        if share < 0.99:
            unknown.append(
                f"What the rest did: Δ was measured for {percent(share)} of the correct responses; "
                "the others were not sampled or are in groups without an incorrect one."
            )
    if not facts.examples:
        unknown.append("What the responses say: neither tokens nor texts of correct responses that "
                       "lost likelihood are recorded.")
    elif any(x.wrong is None for x in facts.examples):
        unknown.append("Which prefix some of the shown responses share with an incorrect one: no "
                       "text of an incorrect response of their group is recorded.")
    if not facts.run.config:
        unknown.append("The settings of the trainer: the run has no config.")
    if facts.state.damaged:
        unknown.append(f"What {len(facts.state.damaged)} damaged parts held; they are left out.")
    for what, count in facts.state.dropped.items():
        unknown.append(f"What the recorder had to drop: {count} × {what}.")
    if facts.state.life == "live":
        unknown.append("How it ends: the run is still going.")
    unknown.append("What would have happened otherwise: one run shows an order, not a cause.")
    return unknown
