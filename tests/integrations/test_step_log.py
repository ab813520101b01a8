"""What `instrument` adds to the trainer's own log, read back from the trackers' stores."""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

os.environ["TRACKIO_DIR"] = tempfile.mkdtemp(prefix="trackio-")  # it is read by the import
pytest.importorskip("trl", reason="trl: not installed")

import trl_tiny

import lldscope
from lldscope.importers.build import Import
from lldscope.importers.source import ImportRequest
from lldscope.integrations.common.step_log import StepLog
from lldscope.integrations.trl import instrument
from lldscope.monitor.health import check

swanlab = pytest.importorskip("swanlab", reason="the stores have an environment of their own")
wandb = pytest.importorskip("wandb", reason="the stores have an environment of their own")
pytest.importorskip("mlflow", reason="the stores have an environment of their own")
trackio = pytest.importorskip("trackio", reason="the stores have an environment of their own")
TRACKIO = Path(os.environ["TRACKIO_DIR"])
LOGGED = re.compile(
    rb'"data": ([-\d.e]+), .{,80}"key": "train/lldscope/delta_correct", "step": (\d+)'
)
SAMPLE = Path(__file__).parents[2] / "sample_runs" / "grpo"


@pytest.fixture
def stores(tmp_path, monkeypatch):
    for name, value in {
        "WANDB_MODE": "offline", "WANDB_DIR": tmp_path, "WANDB_SILENT": "true",
        "TENSORBOARD_LOGGING_DIR": tmp_path / "tensorboard",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db", "SWANLAB_MODE": "local",
        "SWANLAB_LOG_DIR": tmp_path / "swanlog", "SWANLAB_SAVE_DIR": tmp_path / "swanlab",
        "HF_HUB_OFFLINE": "1",
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_tracker_has_the_signals_at_the_trainers_own_step(stores):
    trainer = trl_tiny.make(
        stores / "out", max_steps=8, logging_strategy="steps", logging_steps=2, run_name="mine",
        report_to=["tensorboard", "wandb", "mlflow", "trackio", "swanlab"],
    )
    instrument(trainer, stores / "run", rescore_share=1.0)
    trainer.train()
    for tracker in (wandb, swanlab):  # whose last rows wait in memory
        tracker.finish()
    with lldscope.open_run(stores / "run") as run:
        expected = dict(zip([2, 4, 6, 8], run.columns()["delta_correct"], strict=True))
        by_action = run.action_signals().query("correct")["delta"].tolist()
        state = check(run)
    assert np.isfinite([*expected.values()]).all()
    entries = [e for e in trainer.state.log_history if "lldscope/phase" in e]
    assert {e["step"]: e["lldscope/delta_correct"] for e in entries} == pytest.approx(expected)
    assert [e["lldscope/delta_correct_action_0"] for e in entries] == pytest.approx(by_action)
    assert {e["lldscope/verdict"] for e in entries} == {0}
    assert state.verdict == "insufficient"
    (offline,) = stores.glob("wandb/offline-run-*/*.wandb")
    for store in ("tensorboard", offline, "mlflow.db", TRACKIO / "huggingface.db"):
        to = stores / f"imported-{Path(store).name}"
        Import([stores / store], to, ImportRequest(), None).build(lambda size: None)
        with lldscope.open_run(to) as run:
            rows = run.rows("SELECT step, value FROM scalars WHERE name = 'delta_correct'").rows
        assert dict(rows) == pytest.approx(expected), store
    (backup,) = stores.glob("swanlog/run-*/backup.swanlab")
    rows = {int(step): float(value) for value, step in LOGGED.findall(backup.read_bytes())}
    assert rows == pytest.approx(expected)


def test_alarms_are_passed_on_once_by_the_trackers_own_means(stores, caplog):
    with lldscope.open_run(SAMPLE) as run:
        state = check(run)
    alarms = [a for a in state.firing if a.severity != "info"]
    assert alarms
    offline = Path(wandb.init(project="mine").settings.sync_file)
    trackio.init(project="mine")
    log = StepLog(SimpleNamespace(path=SAMPLE))
    log._pass_on(replace(state, alerts=()))
    for _ in range(2):
        log._pass_on(state)
    trackio.finish()
    wandb.finish()
    with sqlite3.connect(TRACKIO / "mine.db") as database:
        titles = [title for (title,) in database.execute("SELECT title FROM alerts")]
    assert titles == [f"{a.rule} ({a.severity})" for a in alarms]
    until = time.monotonic() + 60  # the process that writes the file may go on for a moment
    while not all(title.encode() in offline.read_bytes() for title in titles):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert caplog.text.count(titles[0]) == 1
