"""When what broke began, on the study's runs into which a fault was put at a known step."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lldscope.core.schema import SIGNALS
from lldscope.diagnosis.account import Event
from lldscope.diagnosis.assess import Assessment, assess
from lldscope.diagnosis.changepoints import SEGMENT_STEPS, Curve, fit
from lldscope.diagnosis.evidence import SMOOTH
from lldscope.evaluation.bank import read_bank

BANK = Path(__file__).parents[2] / "sample_runs" / "bank"
AT = 30  # the step with which each fault begins
FAULTS = [
    row["run"]
    for line in (BANK / "index.jsonl").read_text(encoding="utf-8").splitlines()
    if (row := json.loads(line)).get("fault")
]


@cache
def events_in(run: str) -> tuple[Assessment, dict[str, Event]]:
    (labelled,) = (r for r in read_bank(BANK) if r.name == run)
    assessment = assess(labelled.signals())
    events = assessment.account.events
    return assessment, {event.rule: event for event in events}


@pytest.mark.parametrize("run", [*FAULTS, "lever-half-batch-11"])  # it fires again much later
def test_nothing_begins_after_it_was_seen(run: str) -> None:
    assessment, events = events_in(run)
    firings = {a.rule: [start for start, _ in a.episodes] for a in assessment.alerts}
    for event in events.values():
        assert not any(event.start <= step < event.alarm_step for step in firings[event.rule])
        assert event.start <= event.alarm_step
        if event.low is not None:
            assert event.low <= event.onset_step <= event.high <= event.alarm_step
    assert all(b.step <= b.live for b in assessment.account.boundaries)


def test_a_crash_began_before_the_decline_was_seen() -> None:
    """A reward that declines, stays and then crashes has one beginning: that of the decline."""
    steps = np.arange(260)
    level = np.interp(steps, [0, 60, 100, 140, 176, 215], [0.3, 0.6, 0.6, 0.4, 0.4, 0.1])
    reward = level + np.random.default_rng(0).normal(0, 0.02, len(steps))
    signals = dict.fromkeys(SIGNALS.names, np.full(len(steps), np.nan))
    assessment = assess(signals | {"step": steps, "reward": reward})
    fired_at = {alert.rule: alert.step for alert in assessment.alerts}
    assert fired_at["reward-decline"] < 140 < fired_at["reward-crash"]
    (event,) = assessment.account.events
    assert (event.rule, event.alarm_step) == ("reward-crash", fired_at["reward-decline"])
    assert 90 <= event.low <= event.onset_step <= event.high <= fired_at["reward-decline"]


def test_the_end_of_the_improvement_is_not_taken_for_the_fall() -> None:
    """The reward rises until the fault: a line through the rise as well bends where that ends."""
    dated = 0
    for run in FAULTS:
        assessment, events = events_in(run)
        reward = events.get("reward-crash") or events.get("reward-decline")
        if reward is None or reward.onset_step is None:
            continue
        before = assessment.evidence.step < reward.alarm_step
        mean = np.where(before, assessment.evidence.reward, np.nan)
        best = assessment.evidence.step[np.nanargmax(mean)]
        assert best - SMOOTH + SEGMENT_STEPS < reward.onset_step, run
        assert reward.onset_step > AT - SMOOTH, run
        dated += 1
    assert dated > 20


@pytest.mark.parametrize("run", [run for run in FAULTS if "retriever" in run or "lr-" in run])
def test_a_fault_that_acts_at_once_is_dated_to_the_step(run: str) -> None:
    _, events = events_in(run)
    reward = events.get("reward-crash") or events["reward-decline"]
    assert AT <= reward.onset_step <= AT + 1


def test_a_break_is_not_sought_after_the_step_that_shows_it() -> None:
    steps = np.arange(60.0)
    jump = Curve("x", steps, np.where(steps < 40, 0.0, -1.0), -1, jumps=True, level=True)
    assert fit(jump, [], 1)[0][0] == 40
    step, low, high = fit(jump, [], 1, [30])[0]
    assert low <= step <= high <= 30
    assert fit(jump, [], 1, [SEGMENT_STEPS - 1]) == []
