"""What a step costs: seconds that add up, what is shown."""

from __future__ import annotations

import pytest
from keeper import SMALL, Keeper, train
from lldscope_trainer.config import load_config
from lldscope_trainer.display import cost, summary
from lldscope_trainer.train import StepReport


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


@pytest.mark.parametrize(("peak", "text"), [(None, ""), (3 * 2**29, "; peak 1.5 GiB")])
def test_the_display_tells_the_speed(peak, text):
    report = StepReport(
        step=0, reward=0.5, delta_correct=-0.2, tokens_per_second=812.4, phase="decay",
        seconds={"sync": 0.0, "score": 0.25, "update": 3.0}, memory_peak=peak,
    )
    assert cost(report) == f"seconds: update 3.00, score 0.25{text}"
    assert summary(report) == "reward 0.50  Δ correct -0.20  812 tokens/s  decay"
