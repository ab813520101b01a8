"""docs/tutorial.md: its commands train, and its runs can be judged."""

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
def test_the_runs_of_the_tutorial_train_and_are_judged(tmp_path, lldscope_command):
    commands = re.findall(r"^python docs/tutorial.py [^#\n]*", PAGE, re.M)
    assert len(commands) == 3
    for command in commands[1:]:  # the first differs from the third by the gate alone
        _, script, *arguments = shlex.split(command)
        done = subprocess.run(
            [sys.executable, ROOT / script, *arguments], cwd=tmp_path, capture_output=True,
            text=True, check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
    runs = [tmp_path / "runs" / name for name in ("slow", "llds")]
    slow = lldscope.open_run(runs[0]).signals()
    assert len(slow) == 80
    assert slow["delta_correct"].notna().mean() > 0.5
    assert slow["reward"][-10:].mean() > 2 * slow["reward"][:5].mean()
    assert lldscope_command("check", runs[0]).returncode in (0, 10)
    llds = lldscope.open_run(runs[1]).sql("SELECT max(llds_gate) AS g FROM actions")
    assert llds["g"][0] is not None
    compared = lldscope_command("compare", *runs)
    assert compared.returncode == 0, compared.stderr
