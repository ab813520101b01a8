"""Sentences of the post-mortem: what happened, in five, and what this log cannot tell."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..alarms.assess import Assessment
from ..alarms.rules.measures import observed
from ..core.numbers import number
from ..signals.phases import LEAST

# What is missing if a signal was never measured.
_LACKS = (
    ("delta_correct", "How far each step's updates moved the likelihood of its responses (Δ): no "
     "re-score after the last update is recorded. Phases and alarms rest on less."),
    ("correct_logp", "Whether correct responses lost likelihood: there are no log-probabilities "
     "of the trainer's policy, or no response was correct."),
    ("entropy", "When the entropy broke out: it is not recorded."),
    ("grad_norm", "When the gradients broke out: their norm is not recorded."),
    ("good_first_action_share", "How often a wrong rollout began with a good first action: the "
     "documents of the tool calls are not recorded."),
    ("incorrect_error_norm", "Which wrong responses pushed most: prediction errors are not "
     "recorded."),
    ("engine_gap", "Whether the sampling engine agreed with the trainer: its log-probabilities "
     "are not recorded."),
    ("kl", "How far the policy went from the reference: KL is not recorded."),
    ("tool_fail_share", "Whether the tools answered: it is not recorded."),
)  # fmt: skip

_LINKS = {
    "likelihood": "the likelihood of correct responses fell",
    "entropy": "the entropy broke out",
    "gradient": "the gradient norm broke out",
    "reward": "the reward broke down",
}


def date(seconds: float | None) -> str:
    """A Unix time as a date of UTC, to the minute."""
    if seconds is None:
        return "an unknown time"
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def when(facts: Mapping[str, Any], step: int | None) -> str:
    """A step and its date: the time of day alone where it is the day on which the run began."""
    seconds = facts["dates"].get(str(step))
    if seconds is None:
        return f"step {step}"
    told = date(seconds)
    began = date(facts["run"]["first_time"])
    return f"step {step} ({told[11:] if told[:10] == began[:10] else told})"


def duration(seconds: float) -> str:
    """A stretch of time as people say it."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (unit == "min" and seconds >= 60):
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def interval(b: Mapping[str, Any]) -> str:
    """The 95 % interval of a boundary or an onset; empty without one."""
    return "" if b.get("low") is None else f" (95 %: {b['low']}–{b['high']})"


# -- five sentences -------------------------------------------------------------------------------


def summary(facts: Mapping[str, Any]) -> list[str]:
    """What happened, in at most five sentences."""
    if facts["kind"] == "empty":
        return [
            f"{facts['run']['name']} holds no step yet, so there is nothing to tell.",
            _life(facts),
        ]
    told = [_course(facts), _reward(facts), _likelihood(facts), _order(facts), _warning(facts)]
    return [sentence for sentence in told if sentence]


def _course(facts: Mapping[str, Any]) -> str:
    run = facts["run"]
    trained = duration(run["last_time"] - run["first_time"]) if run["first_time"] else "–"
    return (
        f"{run['name']} recorded {run['n_steps']:,} steps ({run['first_step']}–{run['last_step']}) "
        f"in {trained}, from {date(run['first_time'])} to {date(run['last_time'])}; {_life(facts)}"
    )


def _life(facts: Mapping[str, Any]) -> str:
    state = facts["state"]
    why = f" ({state['reason']})" if state["reason"] else ""
    words = {
        "live": "it is still running, and this report is as of its last row.",
        "finished": "it ended in order.",
        "stopped": f"it was stopped{why}.",
        "failed": f"it failed{why}.",
        "stalled": f"it makes no more steps{why}.",
    }
    return words[state["life"]]


def _reward(facts: Mapping[str, Any]) -> str:
    reward = facts["outline"].get("reward")
    if reward is None:
        return "The reward was not recorded."
    return (
        f"Its reward (ten-step mean) began at {number(reward['start'])}, was best at "
        f"{when(facts, reward['highest_step'])} with {number(reward['highest'])}, and is "
        f"{number(reward['end'])} at the end."
    )


def _likelihood(facts: Mapping[str, Any]) -> str:
    kind = facts["kind"]
    if kind in ("collapsed", "decayed"):
        return _fall(facts)
    if kind == "short":
        return f"There are too few steps to judge: {LEAST} with measurements are needed."
    supported = [
        name for name, found in facts["look_alikes"].items() if found["answer"] == "supported"
    ]
    if supported:
        names = " and ".join(supported)
        return f"The log supports {names} as the cause of what went wrong, and not LLD."
    if kind == "failed":
        return "The run is unwell, but the log does not say why."
    if facts["state"]["evidence"] == "symptoms":
        return (
            "Nothing died here as far as reward, entropy and gradients show; likelihood was not "
            "recorded, so LLD itself cannot be judged."
        )
    quiet = _quiet(facts)
    on = "Δ" if facts["state"]["evidence"] == "delta" else "levels"
    return (
        f"Nothing died here: judged on {on}, correct responses kept their likelihood, and {quiet}."
    )


def _quiet(facts: Mapping[str, Any]) -> str:
    """Which alarms did not fire in a run that is well."""
    if not facts["alarms"]:
        return "no alarm fired"
    notes = [a["rule"] for a in facts["alarms"] if a["severity"] == "info"]
    if facts["kind"] == "alarmed" or not notes:
        return "no alarm of decay fired"
    return f"no warning fired; for information: {', '.join(notes)}"


def _fall(facts: Mapping[str, Any]) -> str:
    decays = [b for b in facts["boundaries"] if b["phase"] == "decay"]
    if decays:
        b = decays[0]
        begun = f"from {when(facts, b['step'])} on{interval(b)}, as hindsight shows"
        begun += f", recognised live at {when(facts, b['live'])}"
    else:
        begun = f"from {when(facts, facts['fall'])} on, as the live classifier saw it"
    if facts["collapse"] is not None:
        end = f" and at {when(facts, facts['collapse'])} this had become a collapse"
    elif facts["state"]["phase"] == "recovered":
        end = " and the run recovered"
    else:
        end = " and no collapse followed" if facts["state"]["life"] != "live" else " so far"
    return f"Correct responses lost likelihood {begun},{end}."


def _order(facts: Mapping[str, Any]) -> str:
    seen = [link for link in facts["links"] if link["seen"] is not None]
    if not seen:
        return ""
    told = []
    for link in seen:
        begins = link["onset"] if link["onset"] is not None else link["seen"]
        told.append(f"{_LINKS[link['link']]} from {when(facts, begins)}{interval(link)}")
    quiet = {
        "likelihood": "the likelihood never fell",
        "reward": "the reward never crashed",
        "entropy": "the entropy never broke out",
        "gradient": "the gradient norm never broke out",
    }
    never = [
        quiet[link["link"]] for link in facts["links"] if link["measured"] and link["seen"] is None
    ]
    order = "In order: " if len(told) > 1 else "Of the spiral's links one was seen: "
    rest = f"; {' and '.join(never)}" if never else ""
    return f"{order}{', then '.join(told)}{rest}."


def _warning(facts: Mapping[str, Any]) -> str:
    graver = [a for a in facts["alarms"] if a["severity"] != "info"]
    alarms = [a for a in graver if a["rule"] != "stalled" and a["step"] is not None]
    if not alarms:
        if any(a["rule"] == "stalled" for a in graver):
            only = "only alarm" if graver == facts["alarms"] else "only one that is no information"
            return f"The {only} is that the run makes no more steps."
        if facts["kind"] in ("healthy", "short"):
            return ""
        return "No warning fired." if facts["alarms"] else "No alarm fired."
    first = min(alarms, key=lambda a: a["step"])
    ahead = lead(first, "collapse") or lead(first, "reward_crash")
    if not ahead:
        return f"The first alarm was {first['rule']} at {when(facts, first['step'])}."
    end = "the collapse" if lead(first, "collapse") else "the reward crashed"
    fired = when(facts, first["step"])
    return f"The first alarm, {first['rule']} at {fired}, came {ahead} before {end}."


def lead(alarm: Mapping[str, Any], name: str) -> str:
    """Steps and minutes that an alarm left before `collapse` or `reward_crash`; empty if none."""
    steps, minutes = alarm[f"steps_before_{name}"], alarm[f"minutes_before_{name}"]
    if steps is None:
        return ""
    time = "" if minutes is None else f" ({duration(60 * minutes)})"
    return f"{steps} step{'' if steps == 1 else 's'}{time}"


# -- what this log cannot tell --------------------------------------------------------------------


def limits(assessment: Assessment, facts: Mapping[str, Any]) -> list[str]:
    """What this log cannot tell, and why."""
    e = assessment.evidence
    if not len(e.step):
        return ["Anything: no step is recorded."]
    told = [words for name, words in _LACKS if not observed(e, name)]
    deltas, signals = e.column("n_delta_correct"), e.signals
    correct = (signals["success"] * signals["n_responses"]).sum()
    if observed(e, "delta_correct") and correct > 0:
        share = float(deltas[deltas == deltas].sum()) / float(correct)
        if share < 0.99:
            told.append(
                f"What the rest did: Δ is known for {share:.0%} of the correct responses; the "
                "others were not re-scored or lie in groups without a wrong one."
            )
    if facts["kind"] != "empty" and not facts["examples"]:
        told.append("What the responses say: neither tokens nor texts of correct responses that "
                    "lost likelihood are recorded.")  # fmt: skip
    elif any(x["wrong"] is None for x in facts["examples"]):
        told.append("Which prefix some of the shown responses share with a wrong one: the words of "
                    "no wrong response of their group are recorded.")  # fmt: skip
    if not facts["run"]["config"]:
        told.append("What the trainer was set to: the run has no config.")
    if facts["damaged"]:
        told.append(f"What stood in {len(facts['damaged'])} damaged parts; they are left out.")
    for what, count in facts["dropped"].items():
        told.append(f"What the recorder had to drop: {count} × {what}.")
    if facts["state"]["life"] == "live":
        told.append("How it ends: the run is still going.")
    told.append("What would have happened otherwise: one run shows no cause beyond its order.")
    return told
