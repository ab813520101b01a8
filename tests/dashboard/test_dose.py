"""The meter of step size, and the trainer's own measurements on the system page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.pages.dose import dose, words_of
from lldscope_dashboard.pages.router import page
from test_dashboard import texts, walk

import lldscope

SAMPLES = Path(__file__).parents[2] / "sample_runs"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.001, "below the range of stable runs"),
        (0.017, "in the range of stable runs"),
        (0.038, "above the range of stable runs"),
        (0.04, "in the range of runs that degraded"),
        (0.2, "above the range of runs that degraded"),
    ],
)
def test_the_words_go_by_what_other_runs_had(value: float, words: str) -> None:
    assert words_of(value) == words


def test_the_meter_is_the_mean_of_the_last_steps_that_measured_it() -> None:
    snapshot = RunRegistry(SAMPLES).snapshot("grpo")
    text = texts(dose_of(snapshot))
    late = snapshot.subject.table["step_kl"].to_numpy(float)[-10:]
    assert f'"aria-valuenow": "{late.mean():.4g}"' in text

    def with_kl(values: list[float]) -> Any:
        table = pd.DataFrame({"step": range(len(values)), "step_kl": values})
        return replace(snapshot, subject=replace(snapshot.subject, table=table))

    assert dose(with_kl([])) == dose(with_kl([float("nan")])) == []
    assert '"aria-valuenow": "0.02"' in texts(dose_of(with_kl([9.0, *[0.02] * 9, float("nan")])))
    for extreme in (-0.1, 1e-9, 50.0):
        (meter,) = [c for c in walk(dose_of(with_kl([extreme])))
                    if getattr(c, "className", "") == "meter"]
        at = meter.children[-1].style["left"]
        assert at == ("0.0%" if extreme < 1 else "100.0%")


def dose_of(snapshot: Any) -> Any:
    from dash import html

    return html.Div(dose(snapshot))


def test_the_system_page_has_what_the_trainer_measured_of_its_steps(tmp_path: Path) -> None:
    with lldscope.Recorder(tmp_path / "run") as recorder:
        for step in range(4):
            recorder.step(
                step=step, n_responses=2, n_tokens=90, time=1e9 + step, seconds_rollout=0.5,
                seconds_update=0.4, seconds_record=0.1, seconds_sync=0.1, flops=1e12,
                flops_possible=4e12, memory_peak=2**30,
            )
    content = page(RunRegistry(tmp_path), "/system/run", "")
    ids = {c.id["index"] for c in walk(content) if isinstance(getattr(c, "id", None), dict)
           and c.id.get("type") == "chart"}
    assert ids >= {"step_seconds", "seconds_rollout", "seconds_update", "seconds_sync", "mfu",
                   "memory_peak", "tokens_per_second"}
