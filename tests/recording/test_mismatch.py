"""How far the engine's and the update's policy are from the trainer's, as a distribution.

Log-probabilities here are made up.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mismatch_twin import dump, twin

import lldscope
from lldscope.recording.batch import Batch, Scores
from lldscope.recording.columns import StepRows, record, tables

EQUALS = {
    "kl": "engine_gap",
    "k3_kl": "engine_k3",
    "chi2_token": "engine_chi2",
    "rollout_is_mean": "engine_ratio",
    "rollout_is_eff_sample_size": "engine_ess",
}


def batch(old, behaviour, mask, **more) -> Batch:
    n = len(mask)
    return Batch(
        step=0, mask=mask, prompt_ids=[[1]] * n, completion_ids=[[1] * mask.shape[1]] * n,
        rewards=np.arange(n) % 2.0, correct=[bool(i % 2) for i in range(n)],
        group_ids=np.arange(n) // 4, old=old, behaviour=behaviour, **more,
    )


def signals(path: Path, data: Batch) -> dict[str, float]:
    with lldscope.Recorder(path) as recorder:
        record(recorder, data)
    return lldscope.open_run(path).signals().iloc[0].to_dict()


@pytest.mark.parametrize(("scale", "far"), [(1e-3, False), (0.3, False), (0.1, True)])
def test_signals_are_the_metrics_of_verl(scale, far, tmp_path):
    old, rollout, mask = dump(3, scale, far)
    row, expected = signals(tmp_path / "run", batch(old, rollout, mask)), twin(old, rollout, mask)
    for name, signal in EQUALS.items():
        assert row[signal] == pytest.approx(expected[name], rel=1e-6, abs=1e-6), name


def test_the_pair_of_the_update_is_measured_like_the_engines(tmp_path):
    old, inner, mask = dump(5, 0.2)
    row = signals(tmp_path / "run", batch(old, None, mask, inner=inner))
    expected = twin(inner, old, mask)
    for name in ("k3_kl", "chi2_token", "rollout_is_eff_sample_size"):
        signal = EQUALS[name].replace("engine", "inner")
        assert row[signal] == pytest.approx(expected[name], rel=1e-6, abs=1e-6), name
    assert row["inner_far_share"] == pytest.approx(np.mean(np.abs(inner - old)[mask] > math.log(2)))
    assert 0 < row["inner_far_share"] < 0.1
    assert pd.isna(row["engine_k3"])


def test_the_kl_to_the_reference_is_the_sum_of_k3():
    """Schulman, "Approximating KL divergence" (2020), http://joschu.net/blog/kl-approx.html."""
    old, reference, mask = dump(3, 0.1)
    gaps = [r - o for r, o, mine in zip(reference.flat, old.flat, mask.flat, strict=True) if mine]
    sums = StepRows(batch(old, None, mask, reference=reference)).sums()
    assert sums["kl_sum"] == pytest.approx(sum(math.exp(gap) - gap - 1 for gap in gaps))


@pytest.mark.parametrize(
    ("every", "step", "due"),
    [(0, 0, False), (1, 3, True), (2, 3, False), (2, 4, True), (5, 0, True)],
)
def test_tokens_are_recorded_every_so_many_steps(every, step, due):
    old, post, mask = dump(2, 0.1)
    deltas = [sum((post - old)[i][mask[i]]) for i in range(len(mask))]
    order = sorted(range(len(mask)), key=lambda i: deltas[i])
    right, wrong = ([i for i in order if i % 2 == odd] for odd in (1, 0))
    has_post = np.arange(len(mask)) != right[0]
    data = batch(old, None, mask, post=Scores(post, has_post), decode=str)
    rows = tables(replace(data, step=step), tokens_every=every)
    assert ("tokens" in rows) == due
    if due:
        assert {*rows["tokens"]["response_id"]} == {*right[1:4], wrong[0]}, "those that lost most"


def test_what_was_not_measured_is_null_and_what_is_no_number_is_left_out(tmp_path):
    old, rollout, mask = dump(2, 0.1)
    rollout[0, 0] = np.nan  # the engine did not score the token
    old[2, 0] = -np.inf  # it did, and the trainer's number is none
    valid = np.arange(len(mask)) != 4
    data = batch(Scores(old, valid), rollout, mask, inner=old)
    actions = StepRows(data).actions()
    first = {
        n: actions[n][:2] for n in ("engine_k3_sum", "engine_ratio_sq_sum", "n_tokens_engine_far")
    }
    for values in first.values():
        assert values.mask.tolist() == [True, False]
    assert actions["inner_k3_sum"].mask.sum() == 2 == (actions["response_id"] == 4).sum()
    partial = batch(old, rollout, mask, reference=Scores(rollout, valid))
    assert StepRows(partial).sums()["kl_sum"] is None, "a sum of some responses is none of all"
    row = signals(tmp_path / "run", data)
    left = mask.copy()
    left[[0, 2], :30] = False
    left[4] = False
    expected = twin(old, rollout, left)
    for name in ("kl", "k3_kl", "chi2_token", "rollout_is_eff_sample_size"):
        assert row[EQUALS[name]] == pytest.approx(expected[name], rel=1e-6, abs=1e-6), name
    assert row["n_nonfinite"] == 1
