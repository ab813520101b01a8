"""Fifty-two generated runs: verdict, headline and report agree on state, cause, onset,
action and end, and no sentence contradicts the rows. The numbers are made up; nothing was trained.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lldscope
from lldscope.core.numbers import number
from lldscope.diagnosis.account import GRAVER
from lldscope.diagnosis.detectors import floats
from lldscope.monitor.health import check
from lldscope.report import post_mortem
from lldscope.report.document import document
from lldscope.report.markdown import markdown

STEPS = 120
# What a report must not say, whatever happened: each was once false of some run.
NEVER = {
    r"\bnan\b|\binf\b": "a number that is none",
    r"finished normally": "of an import, or of a run that a person ended",
    r"nothing wrong|shows? no LLD": "of what was not measured",
    r"never (fell|rose|crashed)": "beside values that did",
    r"\bno phase\b": "a phase that is none",
    r"not recorded: weaker|as in runs that fell|time not recorded": "dialect",
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
        case "rewards":
            columns = {"reward": columns["reward"] * ramp(at, 30, 1, 0.4)}
        case "floor":
            columns["entropy"] = np.where(after, 0.0012, columns["entropy"])
        case "sparse":  # few steps have a correct response, and none the later ones
            measured = (np.arange(STEPS) % 9 == 0) & ~after
            columns["delta_correct"] = np.where(measured, -12.3, np.nan)
            columns["reward"] *= ~after
    noise = {"reward": 0.02, "entropy": 0.01, "valid_searches": 0.05, "delta_correct": 0.3}
    for name, sd in noise.items():
        if name not in columns or (kind, name) == ("floor", "entropy"):
            continue
        columns[name] = columns[name] + rng.normal(0, sd, STEPS) * (columns[name] != 0)
    return columns


KINDS = ("sound", "flat", "thirds", "dead", "slow", "entropy", "gradient", "tools", "long",
         "displaced", "rewards", "floor", "sparse")
ENDS = ("finished", "failed", "stopped", "imported")


@pytest.fixture(scope="module", params=KINDS)
def runs(request: Any, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Path]]:
    """A run of a kind with each of the ends."""
    folder = tmp_path_factory.mktemp(request.param)
    outcomes = []
    for seed, end in enumerate(ENDS):
        columns = signals(request.param, np.random.default_rng([KINDS.index(request.param), seed]))
        recorder = lldscope.Recorder(folder / str(seed), trainer="made up")
        for step in range(STEPS):
            recorder.step(step=step, time=1.7e9 + 60 * step)
            values = {n: c[step] for n, c in columns.items() if np.isfinite(c[step])}
            recorder.scalars(step=step, name=list(values), value=list(values.values()))
        reason = {"finished": None, "imported": "imported; how it ended is not in the log"}
        recorder.close(
            status="finished" if end == "imported" else end, reason=reason.get(end, "made up")
        )
        outcomes.append((end, folder / str(seed)))
    return outcomes


@pytest.mark.slow
def test_all_say_the_same(runs: list[tuple[str, Path]]) -> None:
    for end, path in runs:
        with lldscope.open_run(path) as run:
            state, facts, columns = check(run), post_mortem(run), run.columns()
        assert (facts.state.verdict, facts.state.phase) == (state.verdict, state.phase), path
        assert facts.state.headline == state.headline
        line, text = state.headline, markdown(document(facts))
        firing = {a.rule: a for a in state.alerts if a.state == "firing"}
        serious = [a for a in firing.values() if a.severity != "info"]
        # the state, and its colour
        assert (state.verdict in ("warning", "critical", "stalled")) == bool(serious), (path, state)
        sign = state.sign
        assert not (sign.word == "healthy" and facts.trend in ("falling", "dead")), path
        assert f"{sign.shape} **{sign.word}**" in text, path
        # cause and action are those of the headline, its step one of those that the report has
        assert f"{line.cause.split(' (')[0]}" in text, (path, line)
        if serious:
            assert line.rule in firing, (path, line)
            event = facts.event(line.rule or "") or facts.event(GRAVER.get(line.rule or "", ""))
            steps = () if event is None else (event.onset_step, event.alarm_step)
            assert line.step in (*steps, facts.alarm_step(firing[line.rule])), (path, line, event)
        assert {e.rule for e in facts.events} <= {a.rule for a in state.alerts}
        assert all(e.start <= e.alarm_step for e in facts.events), path
        # nobody stops a run that is over
        advice = r"(?<!searches )\b[Ss]top\b|checkpoint now"
        assert not re.search(advice, f"{line.action} {text}"), (path, text)
        # the end
        assert ("; finished." in text) == (end == "finished"), (path, text)
        assert ("how it ended is not in the log" in text) == (end == "imported"), (path, text)
        # no sentence contradicts the rows
        for pattern, why in NEVER.items():
            assert not re.search(pattern, text), (path, why, text)
        has_delta = bool(np.isfinite(floats(columns, "delta_correct")).any())
        assert ("No Δ" in text) != has_delta, (path, text)
        assert "no Δ" not in text or not has_delta, (path, text)
        only_reward = "only the reward was logged" in text
        assert only_reward == (set(facts.signals) == {"reward"}), (path, text)
        reward = facts.signals["reward"]
        assert f"Reward {number(reward.first)} → {number(reward.last)}" in text, path
