"""Whether a number is ordinary: the ranges of healthy logs, and what has to be so."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import lldscope
from lldscope.core.trainers import OTHER
from lldscope.importers.build import Import
from lldscope.importers.source import ImportRequest
from lldscope.report.ordinary import HEALTHY, LEAST, SHOWN, in_words, ordinary
from lldscope.report.trainers import trainer_of

LOGS = pd.read_csv(HEALTHY)


@pytest.fixture
def run(tmp_path):
    rows = [
        {"step": i, "reward": i % 3 / 3, "loss": 0.0, "grad_norm": 1e3, "entropy": 0.3,
         "clip_ratio/region_mean": 0.0, "kl": 1e-3 * i, "completions/mean_length": 100.0}
        for i in range(25)
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = Import([log], tmp_path / "run", ImportRequest(), None)
    with lldscope.open_run(task.build(lambda note: None).run) as opened:
        yield opened


def test_a_signal_is_shown_beside_its_range_in_logs_of_the_same_trainer(run):
    answer = {entry["signal"]: entry for entry in ordinary(run, trainer_of(run.info))}
    assert set(answer) == {"loss_policy", "grad_norm", "entropy", "clip_share", "kl"}
    of_trl = LOGS[LOGS["trainer"] == "trl"]
    for name, entry in answer.items():
        column = of_trl[name].dropna()
        assert (entry["low"], entry["high"], entry["logs"]) == (
            column.min(), column.max(), len(column)
        )
        assert entry["trainer"] == "TRL"
    assert "gradient norm 1,000, above them: " in in_words(answer["grad_norm"])
    assert "them" not in in_words(answer["entropy"])


def test_with_few_logs_of_a_trainer_those_of_all_are_shown_but_not_the_tiny_policys(run):
    answer = {entry["signal"]: entry for entry in ordinary(run, OTHER)}
    others = LOGS[LOGS["trainer"] != "lldscope"]["grad_norm"].dropna()
    assert answer["grad_norm"]["logs"] == len(others) >= LEAST
    assert answer["grad_norm"]["trainer"] == "any trainer"


def test_every_healthy_log_names_its_source():
    assert list(LOGS.columns) == ["trainer", "repository", "path", *SHOWN]
    public = LOGS[LOGS["trainer"] != "lldscope"]
    assert public["repository"].str.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{10}").all()
    assert not LOGS["path"].isna().any()
