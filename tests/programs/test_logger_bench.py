"""The bench of loggers: what it would time is really recorded, and what is missing is said."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import lldscope
from benchmarks import logger_worker, loggers


def test_what_is_not_installed_is_left_out_with_a_word(monkeypatch, capsys):
    monkeypatch.setattr(loggers, "installed", lambda python, name: False)
    loggers.main(["--only", "aim", "mlflow"])
    printed = capsys.readouterr().out
    assert "aim is not installed" in printed
    assert "mlflow is not installed" in printed
    assert "pip install -r benchmarks/loggers.txt" in " ".join(printed.split())
    assert (loggers.HERE / "loggers.txt").is_file()


@pytest.mark.parametrize("task", ["scalars", "actions"])
def test_the_timed_calls_record_every_value(tmp_path, monkeypatch, task):
    monkeypatch.setattr(logger_worker, "STEPS", 4)
    monkeypatch.setattr(logger_worker, "WARM_UP", 2)
    monkeypatch.setattr(logger_worker, "TRAINING", 0.0)
    actions = loggers.sample_actions()
    np.savez(tmp_path / "actions.npz", **actions)
    result = logger_worker.main("lldscope", task, tmp_path)
    assert result["steps"] == 6
    p50, p99, most, mean = result["clock"]
    assert 0 < p50 <= p99 <= most
    assert mean <= most
    per_step = logger_worker.ROWS if task == "actions" else len(logger_worker.NAMES)
    with lldscope.open_run(tmp_path / "run") as run:
        assert run.sql(f"SELECT count(*) n FROM {task}")["n"][0] == 6 * per_step
    if task == "actions":
        assert result["bytes"] / (6 * per_step) <= 40  # the goal; parts of six steps are the worst


def test_a_million_points_are_written_and_read(tmp_path, monkeypatch):
    monkeypatch.setattr(logger_worker, "POINTS", 20 * 600)
    logger_worker.main("lldscope", "million", tmp_path)
    result = logger_worker.main("lldscope", "load", tmp_path)
    assert result["seconds"] > 0
    with np.load(tmp_path / "series.npz") as series:
        source = dict(logger_worker.scalar_steps(600))
        for name in logger_worker.NAMES:
            steps, values = series[name.replace("/", "_")]
            assert steps.tolist() == list(range(600))
            assert values.tolist() == [source[step][name] for step in range(600)]
    assert loggers.draw(tmp_path / "series.npz") > 0


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_is_that_of_the_process():
    assert 10 < logger_worker.peak_mib() < 10_000
