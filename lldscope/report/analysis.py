"""From a run to its post-mortem, and the cost of the trouble.

Losses are counted from the fall until shortly after the collapse was seen: later losses of a dead
policy do not explain its death.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..core.charts import UNSMOOTHED, WEIGHTS
from ..core.schema import UNITS, signals_in
from ..core.version import __version__
from ..diagnosis.assess import Assessment
from ..diagnosis.changepoints import STEPS_AFTER
from ..diagnosis.detectors import Series
from ..diagnosis.evidence import SMOOTH, Evidence
from ..diagnosis.registry import Rule
from ..diagnosis.rule import Alert
from ..explore.experiments import experiments
from ..figures.series import smooth
from ..figures.view import subject_of
from ..monitor.health import check
from ..runs import Run
from .facts import Cost, Outline, PostMortem, RunFacts
from .losses import losses
from .sentences import course, gaps, reward
from .trainers import first_change, trainer_of

REPORT_SCHEMA = 2
REPORTED = tuple(signals_in("report"))


def post_mortem(
    run: Run,
    arl: float | None = None,
    rules: Sequence[Rule] | None = None,
) -> PostMortem:
    """What happened in a run, whatever its evidence and state. `rules` are those that raise alarms,
    by default the built-in ones."""
    assessment, state = run.assess(arl, rules), check(run, arl, rules)
    e = assessment.evidence
    spans = assessment.spans()
    fall = assessment.account.likelihood_fell
    first, last = _window(assessment, fall)
    trainer, subject = trainer_of(run.info), subject_of(run.name, run, state)
    facts = PostMortem(
        schema=REPORT_SCHEMA,
        lldscope=__version__,
        made=time.time(),
        run=_about(run, assessment),
        state=state,
        trend=state.trend,
        phases=spans,
        events=list(state.events),
        fall=fall,
        signals=outlines(e),
        look_alikes=assessment.look_alikes() if len(e.step) else {},
        alarms=list(state.alerts),
        subject=subject,
        losses=losses(run, first, last),
        experiments=experiments(run),
        change=first_change(trainer, run.info.get("config"), state.headline.remedy),
        record=trainer.record,
        cost=cost(e, assessment.alerts),
    )
    facts = replace(facts, gaps=gaps(assessment, facts))
    of_reward = [reward(facts, SMOOTH * e.cadence.stride)] if len(e.step) else []
    return replace(facts, summary=[course(facts), *of_reward])


def outlines(e: Evidence) -> dict[str, Outline]:
    """Each measured signal in a few numbers, taken from the means that the charts draw."""
    lines = {}
    for name in REPORTED:
        values = e.column(name)
        rows = np.isfinite(values)
        weights = e.column(WEIGHTS[name])[rows] if name in WEIGHTS else None
        steps, values = e.step[rows], values[rows]
        if not len(values):
            continue
        if name in UNSMOOTHED:
            mean = values
        else:  # from the first full window on; of few rows from the middle on
            partial = min(SMOOTH, (len(values) + 1) // 2) - 1
            steps, mean = steps[partial:], smooth(values, SMOOTH, weights)[partial:]
        low, high = int(np.argmin(mean)), int(np.argmax(mean))
        lines[name] = Outline(
            UNITS[name], len(values), float(mean[0]), float(mean[low]), int(steps[low]),
            float(mean[high]), int(steps[high]), float(mean[-1]),
        )
    return lines


def _about(run: Run, assessment: Assessment) -> RunFacts:
    step, times = assessment.evidence.step, assessment.evidence.column("time")
    finite = times[np.isfinite(times)]
    return RunFacts(
        name=run.name,
        place=run.place,
        **{name: run.info.get(name) for name in ("id", "trainer", "correct_rule")},
        first_step=int(step[0]) if len(step) else None,
        last_step=assessment.last_step,
        n_steps=len(step) * assessment.evidence.cadence.stride,
        first_time=float(finite[0]) if len(finite) else None,
        last_time=float(finite[-1]) if len(finite) else None,
        config=run.info.get("config") or {},
        tags=run.info.get("tags") or [],
        note=run.info.get("note"),
    )


def _window(assessment: Assessment, fall: int | None) -> tuple[int, int]:
    """The first and the last step of the losses that are counted; the whole run if nothing fell."""
    step = assessment.evidence.step
    first, last = (int(step[0]), int(step[-1])) if len(step) else (0, 0)
    if fall is None:
        return first, last
    spans = assessment.spans()
    collapse = next((s.start_step for s in spans if s.phase == "collapse"), None)
    if collapse is not None:
        return fall, min(last, collapse + STEPS_AFTER)
    return fall, next((s.end_step for s in spans if s.phase == "decay"), last)


_PAUSE = 20.0  # usual steps: a longer gap between two rows is a pause


def cost(e: Evidence, alerts: Sequence[Alert]) -> Cost | None:
    """What passed while warnings or worse alarms fired; None if none fired."""
    serious = [a for a in alerts if a.severity != "info"]
    if not serious:
        return None
    first = min(serious, key=lambda a: a.first_step)
    fires = np.zeros(len(e.step), dtype=bool)
    for start, end in (episode for alarm in serious for episode in alarm.episodes):
        fires |= (e.step >= start) & (e.step < np.inf if end is None else e.step < end)
    seconds, rollouts = step_seconds(e), e.column("n_responses")[fires]
    stride = e.cadence.stride
    return Cost(
        first.rule, first.first_step, int(fires.sum()) * stride,
        int(np.nansum(rollouts)) * stride if np.isfinite(rollouts).any() else None,
        None if seconds is None else float(np.nansum(seconds[fires])) / 3600,
    )


def step_seconds(e: Evidence) -> Series | None:
    """Seconds of each row's steps: the time between rows without pauses, or else the trainer's own
    measurement; None without either."""
    times = np.diff(e.column("time"))
    usual = np.nanmedian(times) if np.isfinite(times).any() else np.nan
    if usual > 0:
        times = np.where((times < 0) | (times > _PAUSE * usual), usual, times)
        return np.concatenate([[usual], times])
    timed = np.stack([e.column("seconds_rollout"), e.column("seconds_update")])
    total = np.nansum(timed, axis=0) * e.cadence.stride
    return np.asarray(total) if np.isfinite(timed).any() else None
