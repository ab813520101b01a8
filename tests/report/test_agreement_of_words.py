"""A hundred generated runs: verdict, headline and report agree on state, cause, onset, action and
end, and no sentence contradicts an alarm. The numbers are made up; nothing was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lldscope
from lldscope.monitor.health import check
from lldscope.report import post_mortem
from lldscope.report.markdown import markdown

STEPS = 120
NEVER = {
    "entropy-surge": "the entropy never rose sharply",
    "grad-explosion": "the gradient norm never rose sharply",
    "lld-decay": "the likelihood never fell",
    "reward-crash": "the reward never crashed",
}


def ramp(start: int, length: int, low: float, high: float) -> np.ndarray:
    """low, then `length` steps to high from `start` on. (STEPS,)"""
    return np.interp(np.arange(STEPS), [start, start + length], [low, high])


def signals(kind: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A run that learns, with one thing that happens to it from a random step on."""
    at = int(rng.integers(40, 80))
    columns = {
        "reward": ramp(0, 60, 0.2, 0.6),
        "entropy": ramp(0, STEPS, 0.6, 0.4),
        "grad_norm": 0.5 * np.exp(0.2 * rng.standard_normal(STEPS)),
        "response_tokens": ramp(0, STEPS, 200, 240),
        "truncated_share": np.full(STEPS, 0.02),
        "valid_searches": np.full(STEPS, 2.0),
        "delta_correct": np.full(STEPS, 0.4),
    }
    after = np.arange(STEPS) >= at
    match kind:
        case "flat":
            columns["reward"] = np.zeros(STEPS)
        case "thirds":
            columns["reward"] *= ramp(at, 20, 1, 0.33)
        case "dead":
            columns["reward"] *= ~after
        case "slow":
            columns["reward"] *= ramp(20, 100, 1, 0.5)
        case "entropy":
            columns["entropy"] *= ramp(at, 10, 1, 8)
            columns["reward"] *= ramp(at + 8, 15, 1, 0.2)
        case "gradient":
            columns["grad_norm"] *= ramp(at, 5, 1, 30)
        case "tools":
            columns["valid_searches"] *= ~after
            columns["reward"] *= ramp(at, 3, 1, 0.4)
        case "long":
            columns["response_tokens"] *= ramp(at, 10, 1, 4)
            columns["truncated_share"] = ramp(at, 10, 0.02, 0.7)
        case "displaced":
            columns["delta_correct"] = ramp(at - 20, 10, 0.4, -1.5)
            columns["reward"] *= ramp(at, 20, 1, 0.3)
    noise = {"reward": 0.02, "entropy": 0.01, "valid_searches": 0.05, "delta_correct": 0.3}
    for name, sd in noise.items():
        columns[name] = columns[name] + rng.normal(0, sd, STEPS) * (columns[name] != 0)
    return columns


KINDS = ("sound", "flat", "thirds", "dead", "slow", "entropy", "gradient", "tools", "long",
         "displaced")
ENDS = ("finished", "failed", "stopped")


@pytest.fixture(scope="module", params=KINDS)
def runs(request: Any, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Path]]:
    """Ten runs of a kind, with the status that each ended with."""
    folder = tmp_path_factory.mktemp(request.param)
    outcomes = []
    for seed in range(10):
        columns = signals(request.param, np.random.default_rng([KINDS.index(request.param), seed]))
        status = ENDS[seed % len(ENDS)]
        recorder = lldscope.Recorder(folder / str(seed), trainer="made up")
        for step in range(STEPS):
            recorder.step(step=step, time=1.7e9 + 60 * step)
            names = list(columns)
            recorder.scalars(step=step, name=names, value=[columns[n][step] for n in names])
        recorder.close(status=status, reason=None if status == "finished" else "made up")
        outcomes.append((status, folder / str(seed)))
    return outcomes


@pytest.mark.slow
def test_all_say_the_same(runs: list[tuple[str, Path]]) -> None:
    for status, path in runs:
        with lldscope.open_run(path) as run:
            state, facts = check(run), post_mortem(run)
        assert (facts.state.verdict, facts.state.phase) == (state.verdict, state.phase), path
        assert facts.state.headline == state.headline
        line, text = state.headline, " ".join(facts.summary)
        firing = {a.rule: a for a in state.alerts if a.state == "firing"}
        serious = [a for a in firing.values() if a.severity != "info"]
        # the state
        assert (state.verdict in ("warning", "critical", "stalled")) == bool(serious), (path, state)
        # the cause and its onset are of an alarm that fires
        if serious:
            assert line.rule in firing, (path, line)
            alarm = firing[line.rule]
            assert line.step in (
                alarm.step,
                getattr(alarm, "began", None),
                alarm.episodes[-1][0],
            ), (path, line)
        # the action: nobody stops a run that is over
        assert "stop and start" not in line.action, (path, line)
        # the end
        assert ("finished normally" in text) == (status == "finished"), (path, text)
        # no sentence contradicts an alarm
        for alarm in facts.alarms:
            assert NEVER.get(alarm.rule, "\0") not in text, (path, alarm, text)
        assert line.cause.split(" (")[0] in markdown(facts), (path, line)
