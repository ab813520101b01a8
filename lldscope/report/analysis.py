"""From a run to its post-mortem.

Losses are counted from the fall until shortly after the collapse was recognised: what a dead policy
loses later does not explain why it died.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from ..alarms.assess import Assessment
from ..alarms.changepoints import STEPS_AFTER, Boundary, refine
from ..alarms.registry import Rule
from ..core.version import __version__
from ..monitor.health import AnyAlert, RunState, check
from ..runs import Run
from ..signals import detectors as d
from ..signals import phases as p
from ..signals.phases import Phase
from .advice import advise
from .examples import examples, questions
from .facts import Alarm, Evaluation, Kind, PostMortem, RunFacts, State
from .losses import losses
from .onset_order import onset_order
from .rows import rows
from .sentences import limits, summary
from .series import outline, series

REPORT_SCHEMA = 1
REPORTED = ("correct_logp", "incorrect_logp", "delta_correct", "delta_incorrect", "lld_share",
            "displaced_share", "reward", "entropy", "grad_norm", "grad_norm_max",
            "response_tokens", "valid_searches", "good_first_action_share", "zero_signal_share",
            "llds_gate_share")  # fmt: skip
_EVALS = (
    "SELECT step, data_source, metric, value, n FROM evals ORDER BY step, data_source, metric, rank"
)


def post_mortem(
    run: Run, arl: float | None = None, rules: Sequence[Rule] | None = None
) -> PostMortem:
    """What happened in a run; `rules` are those that raise alarms, by default the built-in ones.

    Works for every grade of evidence and every state of the run.
    """
    assessment = run.assess(arl, rules)
    facts = _facts(run, assessment, check(run, arl, rules))
    facts = replace(facts, advice=advise(assessment, facts))
    facts = replace(facts, limits=limits(assessment, facts))
    return replace(facts, summary=summary(facts))


def _facts(run: Run, assessment: Assessment, state: RunState) -> PostMortem:
    """The post-mortem but for its advice and sentences; `state` is that of `check`."""
    e = assessment.evidence
    boundaries = refine(assessment)
    fall, collapse = _fall(assessment, boundaries), _first(assessment, "collapse")
    crash = _reward_crash(assessment)
    first, last = _window(assessment, fall, collapse)
    good_first = e.column("good_first_action_share")[(e.step >= first) & (e.step <= last)]
    good_first = good_first[np.isfinite(good_first)]
    events = run.events()
    facts = PostMortem(
        schema=REPORT_SCHEMA,
        lldscope=__version__,
        made=time.time(),
        run=_about(run, assessment),
        state=State(**{of.name: getattr(state, of.name) for of in fields(State)}),
        kind=_kind(assessment, state.alerts),
        phases=assessment.spans(),
        boundaries=boundaries,
        fall=fall,
        collapse=collapse,
        reward_crash=crash,
        signals={name: s for name in REPORTED if (s := series(e.step, e.column(name), name))},
        outline=outline(assessment),
        links=onset_order(assessment, boundaries),
        look_alikes=assessment.look_alikes() if len(e.step) else {},
        events=events,
        evals=rows(Evaluation, run.sql(_EVALS)),
        damaged=state.damaged,
        dropped=state.dropped,
        alarms=[_alarm(alert, assessment, collapse, crash) for alert in state.alerts],
        dates={},
        losses=losses(run, first, last, questions(run, first, last)),
        good_first_action_share=float(good_first.mean()) if len(good_first) else None,
        examples=examples(run, first, last),
        last_checkpoint_before_fall=_checkpoint(events, fall),
    )
    return replace(facts, dates=_dates(assessment, facts))


def _about(run: Run, assessment: Assessment) -> RunFacts:
    step, times = assessment.evidence.step, assessment.evidence.column("time")
    known = times[np.isfinite(times)]
    return RunFacts(
        name=run.name,
        id=run.info.get("id"),
        place=run.place,
        trainer=run.info.get("trainer"),
        correct_rule=run.info.get("correct_rule"),
        attempts=len(run.info.get("attempts") or []),
        first_step=int(step[0]) if len(step) else None,
        last_step=assessment.last_step,
        n_steps=len(step),
        first_time=float(known[0]) if len(known) else None,
        last_time=float(known[-1]) if len(known) else None,
        config=run.info.get("config") or {},
    )


def _dates(assessment: Assessment, facts: PostMortem) -> dict[str, float]:
    """Unix time at which each step ended that sentences name; keys are text, as in JSON."""
    named = {facts.fall, facts.collapse, *(alarm.step for alarm in facts.alarms)}
    named |= {b.live for b in facts.boundaries}
    named |= {step for link in facts.links for step in (link.onset, link.seen)}
    named |= {o.highest_step for o in facts.outline.values()}
    times = _times(assessment)
    return {str(step): at for step, at in times.items() if step in named and np.isfinite(at)}


def _times(assessment: Assessment) -> dict[int, float]:
    e = assessment.evidence
    return dict(zip(e.step.tolist(), e.column("time").tolist(), strict=True))


def _kind(assessment: Assessment, alerts: Sequence[AnyAlert]) -> Kind:
    """The course of the run in a word."""
    if not len(assessment.evidence.step):
        return "empty"
    if "collapse" in assessment.phases:
        return "collapsed"
    if "decay" in assessment.phases:
        return "decayed"
    if not assessment.enough:
        return "short"
    if any(a.severity == "critical" and a.rule != "stalled" for a in alerts):
        return "failed"
    return "alarmed" if any(a.severity == "warning" for a in alerts) else "healthy"


def _first(assessment: Assessment, phase: Phase) -> int | None:
    return next((s.start_step for s in assessment.spans() if s.phase == phase), None)


def _fall(assessment: Assessment, boundaries: Sequence[Boundary]) -> int | None:
    if boundaries:
        return boundaries[0].step
    live = [_first(assessment, "decay"), _first(assessment, "collapse")]
    return min((step for step in live if step is not None), default=None)


def _reward_crash(assessment: Assessment) -> int | None:
    crashed = np.flatnonzero(d.consecutive(p.reward_crashed(assessment.evidence)) >= 2)
    return int(assessment.evidence.step[crashed[0]]) if len(crashed) else None


def _window(assessment: Assessment, fall: int | None, collapse: int | None) -> tuple[int, int]:
    """First and last step over which losses are counted; the whole run where nothing fell."""
    step = assessment.evidence.step
    first, last = (int(step[0]), int(step[-1])) if len(step) else (0, 0)
    if fall is None:
        return first, last
    if collapse is not None:
        return fall, min(last, collapse + STEPS_AFTER)
    ends = [s.end_step for s in assessment.spans() if s.phase == "decay"]
    return fall, ends[0] if ends else last


def _alarm(
    alert: AnyAlert, assessment: Assessment, collapse: int | None, crash: int | None
) -> Alarm:
    times = _times(assessment)

    def lead(end: int | None) -> tuple[int | None, float | None]:
        """Steps and minutes from the alarm to `end`; None if it came later."""
        step = alert.step
        if end is None or step is None or step > end:
            return None, None
        seconds = times.get(end, np.nan) - times.get(step, np.nan)
        return end - step, seconds / 60 if np.isfinite(seconds) else None

    (steps, minutes), (steps_to_crash, minutes_to_crash) = lead(collapse), lead(crash)
    return Alarm(
        **vars(alert),
        steps_before_collapse=steps,
        minutes_before_collapse=minutes,
        steps_before_reward_crash=steps_to_crash,
        minutes_before_reward_crash=minutes_to_crash,
    )


def _checkpoint(events: Sequence[Mapping[str, Any]], fall: int | None) -> int | None:
    """The last checkpoint before the fall."""
    steps = [e.get("step") for e in events if e.get("kind") == "checkpoint"]
    return max((s for s in steps if s is not None and fall is not None and s < fall), default=None)
