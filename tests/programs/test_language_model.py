"""The driver of the language-model experiment: its plan, what is made, and when a signal turns."""

from __future__ import annotations

import pandas as pd
import pytest
from lldscope_trainer.config import load_config

import lldscope
from lldscope.core.errors import LldscopeError
from study import language_model as lm


def test_the_plan_is_the_pages(tmp_path):
    names = [name for name, _ in lm.plan()]
    assert len(names) == len(set(names)) == sum(lm.SEEDS.values())
    assert names[:4] == ["plain-1", "llds-1", "half-1", "plain-2"]
    for name, settings in (*lm.plan(), *lm.exploration()):
        config = load_config(lm.CONFIG, settings)
        assert config.name == name
        assert (config.lr == pytest.approx(lm.LR / 2)) == name.startswith("half")


def test_a_run_is_made_resumed_or_left_alone(tmp_path):
    run = tmp_path / "plain-1"
    assert lm.command(["seed=1"], run)[2:] == [lm.CONFIG, "seed=1", "--run", str(run)]
    with lldscope.Recorder(run) as recorder:
        for step in range(20):
            recorder.step(step=step, reward_sum=4.0, n_responses=8)
        recorder.flush()
        with pytest.raises(LldscopeError, match="before its first checkpoint"):
            lm.command([], run)
        (run / "checkpoints" / "step-10").mkdir(parents=True)
        assert lm.command([], run)[2:] == ["--resume", "--run", str(run)]
        for step in range(20, 45):
            recorder.step(step=step, reward_sum=0.0, n_responses=8)
        recorder.flush()
        assert lm.command([], run) is None  # it has collapsed
    whole = tmp_path / "plain-2"
    lldscope.Recorder(whole).close(status="finished")
    assert lm.command([], whole) is None


def test_a_signal_turns_where_ten_means_in_a_row_are_beyond_its_limit():
    flat = dict.fromkeys(("reward", "entropy", "grad_norm"), 1.0)
    rows = [{"step": s, **flat, "delta_correct": 0.1, "retention_delta": 0.1} for s in range(60)]
    signals = pd.DataFrame(rows)
    assert set(lm.events(signals).values()) == {None}
    signals.loc[30:, "delta_correct"] = -0.3  # the mean of ten is under 0 with the third of them
    signals.loc[20:22, "retention_delta"] = -9.0  # for ten steps and no longer than its window
    signals.loc[40:, "reward"] = 0.0
    signals.loc[55:, "entropy"] = 9.0  # too late for ten in a row
    turns = lm.events(signals)
    assert turns == {"reward": 41, "delta": 32, "retention": 20, "entropy": None, "norm": None}
