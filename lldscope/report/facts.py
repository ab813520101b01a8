"""Everything a post-mortem says, as plain data that goes into JSON.

The story is told twice and each time says which: `phases` as the live classifier saw them, from the
rows up to each step, and `boundaries` with hindsight, with intervals. `fall` is the step from which
on likelihood was lost, with hindsight where there is one; the losses are counted from there until
shortly after the collapse was recognised, because a dead policy's losses say nothing about why.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..alarms.assess import Assessment
from ..alarms.changepoints import STEPS_AFTER, Boundary, refine
from ..alarms.registry import Rule
from ..core.version import __version__
from ..monitor.health import RunState, check
from ..runs import Run
from ..signals import detectors as d
from ..signals import phases as p
from .advice import advise
from .losses import losses, records
from .sentences import limits, summary
from .series import outline, series
from .spiral import onset_order
from .token_texts import examples, questions

REPORT_SCHEMA = 1
WITNESSES = ("correct_logp", "incorrect_logp", "delta_correct", "delta_incorrect", "lld_share",
             "displaced_share", "reward", "entropy", "grad_norm", "grad_norm_max",
             "response_tokens", "valid_searches", "good_first_action_share", "zero_signal_share",
             "llds_gate_share")  # fmt: skip


def post_mortem(
    run: Run, arl: float | None = None, rules: Sequence[Rule] | None = None
) -> dict[str, Any]:
    """What happened in a run; `rules` are those that raise alarms, by default the built-in ones.

    Works for every grade of evidence and every state; what was not measured is None.
    """
    assessment = run.assess(arl, rules)
    state = check(run, arl, rules)
    plain = state.to_dict()
    e = assessment.evidence
    boundaries = refine(assessment)
    facts: dict[str, Any] = {
        "schema": REPORT_SCHEMA,
        "lldscope": __version__,
        "made": time.time(),
        "run": _about(run, assessment),
        "state": {k: plain[k] for k in ("verdict", "evidence", "phase", "last_step", "life",
                                        "over", "reason", "last_row_age_seconds", "arl")},
        "kind": _kind(assessment, state),
        "phases": plain["phases"],
        "boundaries": [asdict(b) for b in boundaries],
        "fall": _fall(assessment, boundaries),
        "collapse": _first(assessment, "collapse"),
        "reward_crash": _reward_crash(assessment),
        "signals": {name: s for name in WITNESSES if (s := series(e.step, e.column(name), name))},
        "outline": outline(assessment),
        "links": onset_order(assessment, boundaries),
        "look_alikes": {name: asdict(f) for name, f in assessment.look_alikes().items()}
        if len(e.step) else {},
        "events": run.events(),
        "evals": records(run.sql(
            "SELECT step, data_source, metric, value, n FROM evals "
            "ORDER BY step, data_source, metric, rank")),
        "damaged": state.damaged,
        "dropped": state.dropped,
    }  # fmt: skip
    facts["alarms"] = [_alarm(a, assessment, facts) for a in plain["alerts"]]
    facts["dates"] = _dates(assessment, facts)
    first, last = _window(assessment, facts)
    facts["losses"] = losses(run, first, last)
    _name_questions(run, facts["losses"])
    facts["good_first_action_share"] = _mean(assessment, "good_first_action_share", first, last)
    facts["examples"] = examples(run, first, last)
    facts["last_checkpoint_before_fall"] = _checkpoint(facts)
    facts["advice"] = advise(assessment, run.info.get("config") or {}, facts)
    facts["limits"] = limits(assessment, facts)
    facts["summary"] = summary(facts)
    return facts


def _about(run: Run, assessment: Assessment) -> dict[str, Any]:
    times = assessment.evidence.column("time")
    known = times[np.isfinite(times)]
    return {
        "name": run.name,
        "id": run.info.get("id"),
        "place": run.place,
        "trainer": run.info.get("trainer"),
        "correct_rule": run.info.get("correct_rule"),
        "attempts": len(run.info.get("attempts") or []),
        "first_step": int(assessment.evidence.step[0]) if len(times) else None,
        "last_step": assessment.last_step,
        "n_steps": len(times),
        "first_time": float(known[0]) if len(known) else None,
        "last_time": float(known[-1]) if len(known) else None,
        "config": run.info.get("config") or {},
    }


def _dates(assessment: Assessment, facts: dict[str, Any]) -> dict[str, float]:
    """Unix time at which each step ended that sentences name; keys are text, as in JSON."""
    named = {facts["fall"], facts["collapse"], *(a["step"] for a in facts["alarms"])}
    named |= {b["live"] for b in facts["boundaries"]}
    named |= {link[when] for link in facts["links"] for when in ("onset", "seen")}
    named |= {o["highest_step"] for o in facts["outline"].values()}
    e = assessment.evidence
    known = zip(e.step.tolist(), e.column("time").tolist(), strict=True)
    return {str(step): at for step, at in known if step in named and np.isfinite(at)}


def _kind(assessment: Assessment, state: RunState) -> str:
    """Which story there is to tell."""
    if not len(assessment.evidence.step):
        return "empty"
    seen = {s.phase for s in state.phases}
    if "collapse" in seen:
        return "collapsed"
    if "decay" in seen:
        return "decayed"
    if not assessment.enough:
        return "short"
    if any(a.severity == "critical" and a.rule != "stalled" for a in state.alerts):
        return "failed"
    alarmed = any(a.severity == "warning" for a in state.alerts)
    return "alarmed" if alarmed else "healthy"


def _first(assessment: Assessment, phase: str) -> int | None:
    return next((s.start_step for s in assessment.spans() if s.phase == phase), None)


def _fall(assessment: Assessment, boundaries: Sequence[Boundary]) -> int | None:
    with_hindsight = [b.step for b in boundaries[:1]]
    live = [s for name in ("decay", "collapse") if (s := _first(assessment, name)) is not None]
    return next(iter([*with_hindsight, *sorted(live)]), None)


def _reward_crash(assessment: Assessment) -> int | None:
    rows = np.flatnonzero(d.consecutive(p.reward_crashed(assessment.evidence)) >= 2)
    return int(assessment.evidence.step[rows[0]]) if len(rows) else None


def _window(assessment: Assessment, facts: dict[str, Any]) -> tuple[int, int]:
    """First and last step over which losses are counted; the whole run where nothing fell."""
    first, last = facts["run"]["first_step"] or 0, assessment.last_step or 0
    if facts["fall"] is None:
        return first, last
    if facts["collapse"] is not None:
        return facts["fall"], min(last, facts["collapse"] + STEPS_AFTER)
    ends = [s.end_step for s in assessment.spans() if s.phase == "decay"]
    return facts["fall"], ends[0] if ends else last


def _alarm(alert: dict[str, Any], assessment: Assessment, facts: dict[str, Any]) -> dict[str, Any]:
    """An alarm, and how many steps and minutes it came before the collapse and the reward crash."""
    e = assessment.evidence
    times = dict(zip(e.step.tolist(), e.column("time").tolist(), strict=True))
    told = dict(alert)
    for name in ("collapse", "reward_crash"):
        end, at = facts[name], alert["step"]
        ahead = end is not None and at is not None and at <= end
        told[f"steps_before_{name}"] = end - at if ahead else None
        seconds = times.get(end, np.nan) - times.get(at, np.nan) if ahead else np.nan
        told[f"minutes_before_{name}"] = seconds / 60 if np.isfinite(seconds) else None
    return told


def _mean(assessment: Assessment, name: str, first: int, last: int) -> float | None:
    e = assessment.evidence
    values = e.column(name)[(e.step >= first) & (e.step <= last)]
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _checkpoint(facts: dict[str, Any]) -> int | None:
    steps = [
        e["step"]
        for e in facts["events"]
        if e.get("kind") == "checkpoint" and e.get("step") is not None
    ]
    before = [s for s in steps if facts["fall"] is not None and s < facts["fall"]]
    return max(before, default=None)


def _name_questions(run: Run, lost: dict[str, Any]) -> None:
    """The question beside every group and response that is named, where it was recorded."""
    known = questions(run, lost["first_step"], lost["last_step"])
    for name in ("groups", "correct", "wrong"):
        for row in lost[name]:
            row["question"] = known.get((row["step"], row["data_source"], row["group_id"]))
