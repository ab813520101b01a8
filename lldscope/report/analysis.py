"""From a run to its post-mortem.

Losses are counted from the fall until shortly after the collapse was recognised: what a dead policy
loses later does not explain why it died.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.charts import WEIGHTS
from ..core.schema import signals_in
from ..core.version import __version__
from ..diagnosis import conditions as c
from ..diagnosis import detectors as d
from ..diagnosis.assess import Assessment
from ..diagnosis.changepoints import STEPS_AFTER, refine
from ..diagnosis.evidence import Evidence
from ..diagnosis.registry import STALLED, Rule
from ..explore.comparison import onset
from ..explore.trajectories import rows_of
from ..figures.view import subject_of
from ..monitor.alerts import AnyAlert
from ..monitor.health import RunState, check
from ..runs import Run
from .advice import advise
from .examples import examples, questions
from .facts import Cost, Kind, PostMortem, RunFacts
from .forgotten import forgotten
from .losses import losses
from .onset_order import onset_order
from .sentences import limits, summary
from .series import Series, outline, series

REPORT_SCHEMA = 1
TRIMMED = "delta_correct_trim"
REPORTED = tuple(signals_in("report"))
_EVALS = (
    "SELECT step, data_source, metric, value, n FROM evals ORDER BY step, data_source, metric, rank"
)


def post_mortem(
    run: Run,
    arl: float | None = None,
    rules: Sequence[Rule] | None = None,
    cost_per_hour: float | None = None,
) -> PostMortem:
    """What happened in a run; `rules` are those that raise alarms, by default the built-in ones.
    `cost_per_hour` is the price of an hour of it.

    Works for every grade of evidence and every state of the run.
    """
    assessment = run.assess(arl, rules)
    facts = _facts(run, assessment, check(run, arl, rules))
    facts = replace(facts, cost=_cost(assessment, facts.alarms, cost_per_hour))
    facts = replace(facts, advice=advise(assessment, facts))
    facts = replace(facts, limits=limits(assessment, facts))
    return replace(facts, summary=summary(facts))


def _signals(e: Evidence) -> dict[str, Series]:
    """The signals that were measured. Without single responses, Δ is not clipped."""
    signals = {}
    for name in REPORTED:
        values = e.column(name)
        if name == TRIMMED and not np.isfinite(values).any():
            values = e.column("delta_correct")
        weights = e.column(WEIGHTS[name]) if name in WEIGHTS else None
        if one := series(e.step, values, name, weights):
            signals[name] = one
    return signals


def _facts(run: Run, assessment: Assessment, state: RunState) -> PostMortem:
    """The post-mortem but for its advice and sentences; `state` is that of `check`."""
    e = assessment.evidence
    boundaries = refine(assessment)
    fall, spans = onset(assessment, boundaries), assessment.spans()
    collapse = next((s.start_step for s in spans if s.phase == "collapse"), None)
    crashed = e.step[d.consecutive(c.reward_crashed(e)) >= 2]
    first, last = _window(assessment, fall, collapse)
    good_first = e.column("good_first_action_share")[(e.step >= first) & (e.step <= last)]
    good_first = good_first[np.isfinite(good_first)]
    events = run.events()
    facts = PostMortem(
        schema=REPORT_SCHEMA,
        lldscope=__version__,
        made=time.time(),
        run=_about(run, assessment),
        state=state,
        kind=_kind(assessment, state.alerts),
        phases=spans,
        boundaries=boundaries,
        fall=fall,
        collapse=collapse,
        reward_crash=int(crashed[0]) if len(crashed) else None,
        signals=_signals(e),
        outline=outline(assessment),
        links=onset_order(assessment, boundaries),
        look_alikes=assessment.look_alikes() if len(e.step) else {},
        events=events,
        subject=subject_of(run.name, run, state),
        evals=rows_of(run.sql(_EVALS)),
        alarms=list(state.alerts),
        dates={},
        losses=losses(run, first, last, questions(run, first, last)),
        forgotten=forgotten(run),
        good_first_action_share=float(good_first.mean()) if len(good_first) else None,
        examples=examples(run, first, last),
        last_checkpoint_before_fall=_checkpoint(events, fall),
    )
    return replace(facts, dates=_dates(assessment, facts))


def _about(run: Run, assessment: Assessment) -> RunFacts:
    step, times = assessment.evidence.step, assessment.evidence.column("time")
    finite = times[np.isfinite(times)]
    return RunFacts(
        name=run.name,
        place=run.place,
        **{name: run.info.get(name) for name in ("id", "trainer", "correct_rule")},
        attempts=len(run.info.get("attempts") or []),
        first_step=int(step[0]) if len(step) else None,
        last_step=assessment.last_step,
        n_steps=len(step),
        first_time=float(finite[0]) if len(finite) else None,
        last_time=float(finite[-1]) if len(finite) else None,
        config=run.info.get("config") or {},
        tags=run.info.get("tags") or [],
        note=run.info.get("note"),
    )


def _dates(assessment: Assessment, facts: PostMortem) -> dict[str, float]:
    """Unix time at which each step ended that sentences name; keys are text, as in JSON."""
    steps = {facts.fall, facts.collapse, facts.reward_crash}
    steps |= {alarm.step for alarm in facts.alarms}
    steps |= {b.live for b in facts.boundaries}
    steps |= {step for link in facts.links for step in (link.onset, link.seen)}
    steps |= {o.highest_step for o in facts.outline.values()}
    e = assessment.evidence
    times = zip(e.step.tolist(), e.column("time").tolist(), strict=True)
    return {str(step): at for step, at in times if step in steps and np.isfinite(at)}


def _cost(
    assessment: Assessment, alarms: Sequence[AnyAlert], per_hour: float | None
) -> Cost | None:
    """What came after the first warning or worse; None where there was none."""
    firings = [(a.step, a.rule) for a in alarms if a.severity != "info" and a.step is not None]
    firings = [(step, rule) for step, rule in firings if rule != STALLED.id]
    if not firings:
        return None
    step, rule = min(firings)
    e = assessment.evidence
    after = e.step >= step
    times, rollouts = e.column("time")[after], e.column("n_responses")[after]
    finite = times[np.isfinite(times)]
    hours = float(finite[-1] - finite[0]) / 3600 if len(finite) > 1 else None
    n_rollouts = int(np.nansum(rollouts)) if np.isfinite(rollouts).any() else None
    money = None if hours is None or per_hour is None else hours * per_hour
    return Cost(rule, step, int(np.count_nonzero(after)), n_rollouts, hours, money)


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


def _checkpoint(events: Sequence[Mapping[str, Any]], fall: int | None) -> int | None:
    """The last checkpoint before the fall."""
    steps = [e.get("step") for e in events if e.get("kind") == "checkpoint"]
    return max((s for s in steps if s is not None and fall is not None and s < fall), default=None)
