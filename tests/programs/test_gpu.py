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
from lldscope_trainer.policy import logprobs

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


def test_a_check_that_fails_or_cannot_run_costs_no_other(monkeypatch):
    checks_of_this: dict = {}
    monkeypatch.setattr(checks, "CHECKS", checks_of_this)

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
    counts: list[int] = []
    rows = checks.run_all(place, list(checks_of_this), 60, lambda rows: counts.append(len(rows)))
    assert counts == [1, 2, 3], "every row as it comes"
    assert [row.result for row in rows] == ["fail", "not run", "pass"]
    assert "the sum is 1.7e+12 off" in rows[0].message
    assert rows[1].message == "because there is no GPU"
    assert rows[2].figures == {"error": 0.0}
    late = checks.run_all(place, list(checks_of_this), -1)
    assert [row.result for row in late] == ["not run"] * 3


def test_several_texts_choose_and_cheap_checks_come_first():
    names = checks.select(["LLDS", "vLLM", "rounding"])
    assert {name for name in checks.CHECKS if "vLLM" in name} < set(names) < set(checks.CHECKS)
    first_dear = min(i for i, name in enumerate(names) if "vLLM" in name)
    cheap = {"gates that rounding opens", "LLDS: every gate and normalizer"}
    assert cheap <= set(names[:first_dear])
    assert set(checks.select([])) == set(checks.CHECKS)


@pytest.mark.parametrize("code", [0, 1])
def test_every_engine_has_one_process_of_its_own(code, monkeypatch, tmp_path):
    """Two in one would find the card taken by the first, and one that did not start would take its
    minutes again for every check."""
    calls = []

    def run(command, **options):
        calls.append(command[5:])
        error = "Traceback\nValueError: no kernel for [/this] card\nbye\n"
        return subprocess.CompletedProcess(command, code, '{"dtype": "float32"}\n', error)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(engines, "need", lambda package: None)
    monkeypatch.setattr(engines, "make_model", lambda folder, small, tied: "untied")
    place = checks.Place(torch.device("cpu"), tmp_path, "tied", small=True)
    for tied in (True, False, True):
        if not code:
            assert engines.measured(place, tied) == {"dtype": "float32"}
            continue
        with pytest.raises(AssertionError) as failure:
            engines.measured(place, tied)
        first, _, log = str(failure.value).partition("\n")
        assert first == (
            "exit code 1: ValueError: no kernel for [/this] card; measured: "
            '{"dtype": "float32"}'
        )
        assert log.endswith("bye\n")
    assert calls == [["tied"], ["untied"]]


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


def test_a_text_that_names_no_check_is_an_error():
    command = [sys.executable, "-m", "tests.gpu", "--list", "--only", "LLDS", "--only", "nosuch"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no check has 'nosuch' in its name" in done.stderr


def test_on_a_gpu_there_are_enough_tokens_for_the_checks_of_memory():
    """All logits are many blocks."""
    place = checks.Place(torch.device("cpu"), Path(), "", small=False)
    _, mask, lengths = made.long_rollouts(place, scoring.PEAK_ROWS)
    assert 4 * int(mask.sum()) * made.QWEN["vocab_size"] > 32 * logprobs.LOGITS_BYTES
    assert len(set(lengths)) == 1
