"""What a step costs: seconds that add up, what is shown."""

from __future__ import annotations

import pytest
from keeper import SMALL, Keeper, train
from lldscope_trainer.config import load_config


def test_a_step_records_what_it_cost():
    keeper, reports = Keeper(), []
    config = load_config(
        "tiny", [*SMALL, "steps=2", "eval_every=1", "eval_questions=2", "kl_coefficient=0.01"]
    )
    train(config, keeper, on_step=reports.append)
    for row, report in zip(keeper.rows("steps"), reports, strict=True):
        whole = row["seconds_rollout"] + row["seconds_update"] + row["seconds_record"]
        whole += row["seconds_evaluation"]
        assert sum(report.seconds.values()) == pytest.approx(whole)
        parts = [row[f"seconds_{part}"] for part in ("score", "reference", "sync")]
        assert all(0 <= part < row["seconds_update"] for part in parts)
        assert row["seconds_reference"] > 0
        assert row["seconds_evaluation"] > 0, "of the evaluation before it"
        assert row["memory_peak"] is None, "of a CPU nothing is known"
