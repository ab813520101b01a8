"""`python -m tests.gpu` on the CPU: the logic of every check that a GPU gets, and what it says."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu import checks

ROOT = Path(__file__).parents[2]
GPU_ONLY = {
    "vLLM: sleep gives memory back",
    "peak memory of a pass does not grow with vocabulary × length",
    "MFU of the updates",
}
WITH = {"vLLM": "vllm", "DeepSpeed": "deepspeed", "TRL": "trl"}


@pytest.mark.slow
def test_every_check_passes_on_the_cpu_or_says_why_it_does_not_run(tmp_path):
    told = tmp_path / "rows.json"
    command = [sys.executable, "-m", "tests.gpu", "--device", "cpu", "--minutes", "60"]
    done = subprocess.run(
        [*command, "--json", str(told)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert told.exists(), done.stderr[-2000:]
    found = json.loads(told.read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert found["machine"]["torch"] == str(torch.__version__)
    failed = {name: row["said"] for name, row in rows.items() if row["result"] == "fail"}
    assert (failed, done.returncode) == ({}, 0), done.stderr[-2000:]
    for name, row in rows.items():
        missing = [
            package
            for word, package in WITH.items()
            if word in name and importlib.util.find_spec(package) is None
        ]
        expected = "not run" if name in GPU_ONLY or missing else "pass"
        assert row["result"] == expected, (name, row["said"])
        assert row["said"].startswith("because ") == (expected == "not run")
    assert rows.keys() > GPU_ONLY
    assert "not run" in done.stdout
    assert "pass" in done.stdout


def test_a_check_that_fails_or_cannot_run_costs_no_other(monkeypatch):
    made: dict = {}
    monkeypatch.setattr(checks, "CHECKS", made)

    @checks.check("wrong")
    def wrong(place):
        checks.close("the sum", torch.ones(3), torch.zeros(3), 1e-3)

    @checks.check("impossible")
    def impossible(place):
        raise checks.NotRun("there is no GPU")

    @checks.check("right")
    def right(place):
        return "fine", {"error": 0.0}

    place = checks.Place(torch.device("cpu"), Path(), "", small=True)
    rows = checks.run_all(place, list(made), 60)
    assert [row.result for row in rows] == ["fail", "not run", "pass"]
    assert "the sum is 1.7e+12 off" in rows[0].said
    assert rows[1].said == "because there is no GPU"
    assert rows[2].figures == {"error": 0.0}
    late = checks.run_all(place, list(made), -1)
    assert [row.result for row in late] == ["not run"] * 3
