"""How runs end, as their pages say it: by words and by shape, not by colour alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import DRAWN, going_on, opened
from made_up_runs import write_run

pytestmark = pytest.mark.browser

# Name → life, and what the page says why.
RUNS = {
    "on": ("live", ""),
    "well": ("finished", ""),
    "asked": ("stopped", "out of memory"),
    "broke": ("failed", "out of memory"),
    "killed": ("stalled", "the process of rank 0"),
    "silent": ("stalled", "rank 0 has written no heartbeat for"),
}

_KILLED = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[2])
import lldscope
from made_up_runs import write_step
recorder = lldscope.Recorder(sys.argv[1])
for step in range(5):
    write_step(recorder, step, dies=False, at=time.time())
recorder.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""

# What the mark of a life looks like without its colour.
_SHAPE = """selector => {
  const s = getComputedStyle(document.querySelector(selector));
  const filled = s.backgroundColor !== "rgba(0, 0, 0, 0)";
  return [s.borderTopLeftRadius, s.transform, filled].join(" ");
}"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("runs")
    for name, ends in (("well", "finished"), ("asked", "stopped"), ("broke", "failed")):
        write_run(root / name, 5, ends=ends)
    for name in ("killed", "silent"):
        code = [
            sys.executable,
            "-c",
            _KILLED,
            str(root / name),
            str(Path(__file__).parents[1] / "helpers"),
        ]
        assert subprocess.run(code, check=False).returncode == -signal.SIGKILL
    (beat,) = (root / "silent" / "heartbeat").glob("r0.json")
    told = json.loads(beat.read_text())  # as of a process on another machine, ten minutes ago
    beat.write_text(json.dumps(told | {"space": "elsewhere", "time": time.time() - 600}))
    os.utime(beat)
    with going_on(root / "on"):
        yield root


def shape(tab: Any, selector: str) -> str:
    """Found and looked at in one go: a refresh puts another element in its place."""
    told: str = tab.evaluate(_SHAPE, selector)
    return told


def test_lives_are_told_by_word_and_shape_on_list_and_run_page(chromium: Any, address: str) -> None:
    with opened(chromium, address) as tab:
        tab.goto("/")
        shapes = {}
        for name, (life, _) in RUNS.items():
            row = tab.locator("tr", has=tab.locator(f"a[href='/run/{name}']"))
            row.locator(".dot").wait_for()
            assert life in row.locator("td", has=tab.locator(".dot")).inner_text().split()
            shapes[life] = shape(tab, f"tr:has(a[href='/run/{name}']) .dot")
            if life in ("failed", "stalled"):
                assert "stalled" in row.locator(".badge").inner_text()
        assert len(set(shapes.values())) == len(shapes), shapes
        for name, (life, why) in RUNS.items():
            tab.goto(f"/run/{name}")
            tab.wait_for_selector(DRAWN)
            told = tab.locator(".status .life").inner_text()
            assert told.startswith(life), told
            assert why in told
            assert shape(tab, ".status .dot") == shapes[life]
            if life in ("failed", "stalled"):
                alarm = tab.locator(".alarm", has_text="stalled")
                assert "❚❚" in tab.locator(".status .badge").first.inner_text()
                assert why in alarm.locator(".message").inner_text()
