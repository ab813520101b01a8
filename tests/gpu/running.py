"""Runs as processes: killed and gone on with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lldscope

from .checks import Figures, Place, check

STEPS = 6
PATIENCE = 300.0
"""Seconds that a check waits for a process before it calls it hung."""


def worker(place: Place, run: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.gpu.worker", str(place.small), place.model, str(run)]
    return subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)


@check("killed and resumed")
def killed(place: Place) -> tuple[str, Figures]:
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        run = Path(folder) / "run"
        first = worker(place, run)
        end = time.monotonic() + PATIENCE
        while not list(run.glob("checkpoints/step-*2")):
            assert first.poll() is None, f"the run ended: {(first.communicate()[1] or '')[-400:]}"
            assert time.monotonic() < end, "no checkpoint within five minutes"
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        again = worker(place, run, "--resume")
        said = again.communicate(timeout=PATIENCE)[1]
        assert again.returncode == 0, said[-400:]
        made = lldscope.open_run(run)
        steps = made.signals()["step"].tolist()
        assert steps == list(range(STEPS)), f"the record holds the steps {steps}"
        status = json.loads((run / "run.json").read_text("utf-8"))["status"]
        assert status == "finished", f"the run is {status}"
        went_on = int(made.sql("select min(step) from steps where attempt > 1").iloc[0, 0])
    return f"went on from step {went_on}, all {STEPS} steps recorded", {"resumed": went_on}
