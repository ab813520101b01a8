"""The sentences of a post-mortem on the course of the run, its cost and the gaps of its log. State,
cause and action are those of `monitor.headline`."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from ..core.numbers import number, percent, plural
from ..core.safe_text import in_one_line
from ..diagnosis.account import Event
from ..diagnosis.assess import Assessment
from ..diagnosis.evidence import is_observed
from .facts import Cost, PostMortem


def date(seconds: float) -> str:
    """A Unix time as a date of UTC, to the minute."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def duration(seconds: float) -> str:
    """A duration in the unit that people would choose."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (unit == "min" and seconds >= 60):
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def interval(event: Event) -> str:
    """The 95 % interval of a beginning; empty without one."""
    return "" if event.low is None else f" ({event.low}–{event.high})"


def course(facts: PostMortem) -> str:
    """How long the run was and how it ended."""
    run, state = facts.run, facts.state
    reason = in_one_line(state.reason or "")
    why = f" ({reason})" if reason else ""
    life = {
        "live": "still running; this is as of its last row",
        "finished": reason or "finished",
        "stopped": f"stopped{why}",
        "failed": f"failed{why}",
        "stalled": f"makes no more steps{why}",
    }[state.life]
    if not run.n_steps:
        return f"No step is recorded; {life}."
    first, last = run.first_time, run.last_time
    period = ""
    if first is not None and last is not None:
        period = f" in {duration(last - first)} until {date(last)}"
    return f"{plural(run.n_steps, 'step')} ({run.first_step}–{run.last_step}){period}; {life}."


def reward(facts: PostMortem, span: int) -> str:
    """The course of the reward, in the means over `span` steps that its chart shows."""
    line = facts.signals.get("reward")
    if line is None:
        return "The reward was not recorded."
    if line.n < 2:
        return f"Reward {number(line.last)}."
    text = f"Reward {number(line.first)} → {number(line.last)}, {span}-step means"
    if line.highest > max(line.first, line.last):
        text += f"; highest {number(line.highest)} at step {line.highest_step:,}"
    return f"{text}{f'; {facts.trend}' if facts.trend else ''}."


def confidence(facts: PostMortem) -> str:
    """The evidence of the verdict, and how often its alarm is wrong."""
    possible, checks = facts.state.coverage
    alarm = next((a for a in facts.alarms if a.rule == facts.state.headline.rule), None)
    basis = facts.state.evidence_words
    if facts.state.evidence != "delta" and (delta := facts.signals.get("delta_correct")):
        basis = f"Δ at too few steps to judge by ({delta.n:,})"
    parts = [basis] if facts.run.n_steps else []
    parts += [f"{possible} of {checks} checks possible"] if checks else []
    parts += [f"{alarm.rule}: {alarm.false_alarms}"] if alarm else []
    return "; ".join(parts) + "." if parts else ""


def spending(cost: Cost) -> str:
    """Steps, rollouts and time while alarms fired."""
    rollouts = "" if cost.rollouts is None else f", {cost.rollouts:,} rollouts"
    hours = "" if cost.hours is None else f", {duration(3600 * cost.hours)}"
    first = f"the first at step {cost.step} ({cost.rule})"
    return f"{plural(cost.steps, 'step')}{rollouts}{hours} while alarms fired, {first}."


def gaps(assessment: Assessment, facts: PostMortem) -> list[str]:
    """What this log cannot tell, and why."""
    e, state = assessment.evidence, facts.state
    if not len(e.step):
        return ["No step is recorded."]
    lacking = []
    has_delta = is_observed(e, "delta_correct")
    if not has_delta:
        lacking.append(
            "No Δ: correct responses were not re-scored after the updates, so likelihood decay, "
            "which turns before the reward does, cannot be seen."
        )
    impossible = [n for n, f in facts.look_alikes.items() if f.answer == "not_observable"]
    if impossible:
        of = len(facts.look_alikes)
        is_are = "is" if len(impossible) == 1 else "are"
        names = ", ".join(impossible)
        lacking.append(f"{len(impossible)} of {of} checks {is_are} not possible: {names}.")
    correct = np.nansum(e.column("success") * e.column("n_responses"))
    if has_delta and correct > 0:
        share = float(np.nansum(e.column("n_delta_correct"))) / float(correct)
        if share < 0.99:
            lacking.append(
                f"Δ was measured for {percent(share)} of the correct responses; the others were "
                "not sampled or are in groups without an incorrect one."
            )
        if not facts.losses.tokens:
            lacking.append("No tokens of correct responses that lost likelihood are recorded.")
    if not facts.run.config:
        lacking.append("The settings of the trainer are not recorded.")
    if state.damaged:
        lacking.append(f"{plural(len(state.damaged), 'damaged part')} could not be read.")
    lacking += [f"Not known: {what} ({why})." for what, why in state.unclear.items()]
    lacking += [f"The recorder dropped {n} × {what}." for what, n in state.dropped.items()]
    return lacking
