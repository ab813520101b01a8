"""`python -m tests.gpu` on the CPU: the logic of every check that a GPU gets, and what it says."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lldscope_trainer.config import load_config

from tests.gpu import checks, engines, losses, made, running, scoring  # noqa: F401
from tests.gpu.__main__ import show

ROOT = Path(__file__).parents[2]
GPU_ONLY = {
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


def test_a_check_that_hangs_ends_and_a_failure_is_shown_as_it_is(monkeypatch, capsys):
    checks_of_this: dict = {}
    monkeypatch.setattr(checks, "CHECKS", checks_of_this)
    monkeypatch.setitem(checks.SECONDS, 1, 0.2)

    @checks.check("hangs", rank=1)
    def hangs(place):
        time.sleep(60)

    @checks.check("brackets", rank=1)
    def brackets(place):
        raise ValueError("no such file: [/opt/cuda] ['a', 'b']\nand more")

    place = checks.Place(torch.device("cpu"), Path(), "", small=True)
    rows = checks.run_all(place, list(checks_of_this), 60)
    assert [row.result for row in rows] == ["fail", "fail"]
    assert rows[0].message.startswith("TimeoutError at test_gpu.py:")
    assert rows[0].message.endswith("not done after 0.2 s")
    assert rows[1].message.endswith("no such file: [/opt/cuda] ['a', 'b']")
    assert "in brackets" in rows[1].figures["log"], "the whole stack is in the file"
    assert rows[1].figures["log"].endswith("and more\n")
    capsys.readouterr()
    show(rows, {"device": "cpu"})
    assert "[/opt/cuda] ['a', 'b']" in capsys.readouterr().out


def test_the_dead_band_of_later_updates_has_one_place_and_one_command():
    assert checks.select(["rounding"]) == ["gates that rounding opens"]
    bands = {load_config(name).llds_dead_band for name in GPU_CONFIGS}
    assert len(bands) == 1
    text = (ROOT / "trainer/configs/search-r1-3b.yaml").read_text("utf-8")
    assert "\nllds_dead_band: " in text
    assert "python -m tests.gpu --device cuda --only rounding" in text
