"""A fault of the bank, in a few steps of real training, and the command that injects it."""

from __future__ import annotations

import json

from click.testing import CliRunner
from keeper import SMALL, Keeper
from lldscope_trainer import loop
from lldscope_trainer.config import load_config

import lldscope
from study.faults import FaultyTrainer, main


def test_retriever_dies():
    keeper = Keeper()
    config = load_config("tiny", [*SMALL, "eval_questions=0", "steps=2"])
    loop.run(FaultyTrainer(config, keeper, "retriever-dies", 1), keeper)
    before, after = (
        [a["tool_ok"] for a in keeper.rows("actions") if (a["kind"], a["step"]) == ("search", s)]
        for s in (0, 1)
    )
    assert True in before
    assert False not in before
    assert False in after
    assert True not in after


def test_command(tmp_path):
    directory = tmp_path / "run"
    words = ["retriever-dies", "tiny", *SMALL, "eval_questions=4", "steps=3", "--seed", "7"]
    done = CliRunner().invoke(main, [*words, "--run", str(directory)])
    assert done.exit_code == 0, done.output
    info = json.loads((directory / "run.json").read_text())
    assert (info["name"], info["status"]) == ("fault-retriever-dies-7", "finished")
    assert (info["config"]["fault"], info["config"]["fault_at"]) == ("retriever-dies", 1)
    assert info["config"]["seed"] == 7
    run = lldscope.open_run(directory)
    assert [(e["kind"], e["step"]) for e in run.events()] == [("injected_fault", 1)]
    assert run.signals()["tool_fail_share"].tolist() == [0, 1, 1]
