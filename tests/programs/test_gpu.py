"""`python -m tests.gpu` on the CPU: the logic of every check that a GPU gets, and what it says."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lldscope_trainer.config import load_config

from tests.gpu import checks, scoring  # noqa: F401

ROOT = Path(__file__).parents[2]
GPU_ONLY = {
    "vLLM: log-probabilities after syncs, a head of its own",
    "vLLM: sleep gives memory back",
    "peak memory of a pass does not grow with vocabulary × length",
}
GPU_CONFIGS = ("search-r1-3b", "search-r1-3b-80gb", "search-r1-3b-141gb")
WITH = {"vLLM": "vllm", "DeepSpeed": "deepspeed", "TRL": "trl"}


@pytest.mark.slow
def test_every_check_passes_on_the_cpu_or_says_why_it_does_not_run(tmp_path):
    file = tmp_path / "rows.json"
    command = [sys.executable, "-m", "tests.gpu", "--device", "cpu", "--minutes", "60"]
    done = subprocess.run(
        [*command, "--json", str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert file.exists(), done.stderr[-2000:]
    report = json.loads(file.read_text())
    rows = {row["name"]: row for row in report["rows"]}
    assert report["machine"]["torch"] == str(torch.__version__)
    failed = {name: row["message"] for name, row in rows.items() if row["result"] == "fail"}
    assert (failed, done.returncode) == ({}, 0), done.stderr[-2000:]
    for name, row in rows.items():
        missing = [
            package
            for word, package in WITH.items()
            if word in name and importlib.util.find_spec(package) is None
        ]
        expected = "not run" if name in GPU_ONLY or missing else "pass"
        assert row["result"] == expected, (name, row["message"])
        assert row["message"].startswith("because ") == (expected == "not run")
    assert rows.keys() > GPU_ONLY
    assert "not run" in done.stdout
    assert "pass" in done.stdout


def test_the_dead_band_of_later_updates_has_one_place_and_one_command():
    assert checks.select(["rounding"]) == ["gates that rounding opens"]
    bands = {load_config(name).llds_dead_band for name in GPU_CONFIGS}
    assert len(bands) == 1
    text = (ROOT / "trainer/configs/search-r1-3b.yaml").read_text("utf-8")
    assert "\nllds_dead_band: " in text
    assert "python -m tests.gpu --device cuda --only rounding" in text
