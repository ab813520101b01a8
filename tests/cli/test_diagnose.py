"""`lldscope diagnose`: from a log to a verdict, with nothing to name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import lldscope

ROOT = Path(__file__).parents[2]


@pytest.fixture
def logs(tmp_path, monkeypatch) -> Path:
    """The sample run that collapses, as a verl console and as JSON lines of one's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with lldscope.open_run(ROOT / "sample_runs" / "grpo") as run:
        rows = run.signals()[["step", "reward", "entropy", "grad_norm"]].to_dict("records")
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    theirs = {"critic/score/mean": "reward", "actor/entropy": "entropy"}
    theirs["actor/grad_norm"] = "grad_norm"
    lines = [
        " - ".join([f"step:{r['step']}", *(f"{name}:{r[ours]!r}" for name, ours in theirs.items())])
        for r in rows
    ]
    (tmp_path / "verl.log").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_log_of_verl_is_diagnosed_with_verls_own_names(logs, lldscope_command):
    done = lldscope_command("diagnose", logs / "verl.log", "--json")
    assert done.returncode == 11
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "critical"
    assert answer["setting"] == "actor_rollout_ref.actor.optim.lr"
    assert answer["record_next_time"][0] == "trainer.v1.trainer_mode=lldscope_sync"
    assert answer["onset"] <= min(ground["step"] for ground in answer["grounds"])
    assert any("re-score" in sentence for sentence in answer["not_in_this_log"])
    assert len(done.stdout) < 10_000
    assert not [p for p in logs.iterdir() if p.is_dir() and p.name != "cache"]


def test_a_terminal_and_a_page_say_the_same(logs, lldscope_command):
    page = logs / "report.html"
    done = lldscope_command("diagnose", logs / "own.jsonl", "-o", page, "--fail-on", "warning")
    assert done.returncode == 11
    assert done.stdout.startswith("CRITICAL")
    assert "lldscope.Recorder(" in done.stdout
    # The log has no times, and none are spoken of.
    steps = re.search(r"([\d,]+) steps \(0–\d+\); imported", done.stdout)
    assert steps is not None
    assert "unknown" not in done.stdout
    assert "<html" in page.read_text()


def test_what_is_no_log_is_an_error(logs, lldscope_command):
    done = lldscope_command("diagnose", logs / "nothing.log")
    assert done.returncode == 1
    assert "does not exist" in done.stderr
