"""A fault of the bank, in a few steps of real training, and the command that injects it."""

from __future__ import annotations

import json

from click.testing import CliRunner
from keeper import SMALL

import lldscope
from study.faults import main


def test_command(tmp_path):
    directory = tmp_path / "run"
    words = ["retriever-dies", "tiny", *SMALL, "updates=1", "steps=3", "--seed", "7"]
    done = CliRunner().invoke(main, [*words, "--run", str(directory)])
    assert done.exit_code == 0, done.output
    info = json.loads((directory / "run.json").read_text())
    assert (info["name"], info["status"]) == ("fault-retriever-dies-7", "finished")
    assert (info["config"]["fault"], info["config"]["fault_at"]) == ("retriever-dies", 1)
    assert info["config"]["seed"] == 7
    run = lldscope.open_run(directory)
    assert [(e["kind"], e["step"]) for e in run.events()] == [("injected_fault", 1)]
    assert run.signals()["tool_fail_share"].dropna().tolist() == [0, 1, 1]
