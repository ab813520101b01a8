"""docs/tutorial.md: the longest of its commands trains, and its run can be judged."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import lldscope

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_run_of_the_tutorial_with_llds_trains_and_is_judged(tmp_path, lldscope_command):
    *_, command = re.findall(r"^python docs/tutorial.py [^#\n]*", PAGE, re.M)
    _, script, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, ROOT / script, *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run = lldscope.open_run(tmp_path / "runs" / "llds")
    signals = run.signals()
    assert len(signals) == 80
    assert signals["delta_correct"].notna().mean() > 0.5
    assert signals["reward"][-10:].mean() > 2 * signals["reward"][:5].mean()
    assert run.sql("SELECT max(llds_gate) AS g FROM actions")["g"].notna().all()
    assert lldscope_command("check", run.path).returncode in (0, 10)
