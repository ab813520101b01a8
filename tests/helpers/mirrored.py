"""What `watch --mirror` sends of a recorded run, and what it should send."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from lldscope.diagnosis.phases import Phase
from lldscope.diagnosis.registry import RULES
from lldscope.monitor.export import MetricsExporter
from lldscope.monitor.follow import Follower

RUN = Path(__file__).parents[2] / "sample_runs" / "grpo"
IDS = [rule.id for rule in RULES]


def watch():
    """A look at the run, and the alarms that fire: what MetricsExporter.send takes."""
    follower = Follower(RUN)
    update = follower.poll()
    return follower, update, [e for e in update.events if e.alert.state == "firing"]


def send(watched, address: str) -> None:
    with MetricsExporter(address) as exporter:
        exporter.send(*watched)


def expected(assessment) -> dict[int, dict[str, float]]:
    """What each step of the run is told as, by a plain loop over episodes."""
    result = {}
    for step, phase in zip(assessment.evidence.step.tolist(), assessment.phases, strict=True):
        values = {} if phase is None else {"lldscope/phase": get_args(Phase).index(phase)}
        for rule in IDS:
            episodes = [e for a in assessment.alerts if a.rule == rule for e in a.episodes]
            firing = any(start <= step and (end is None or step < end) for start, end in episodes)
            values[f"lldscope/alarm/{rule}"] = int(firing)
        result[step] = values
    return result
