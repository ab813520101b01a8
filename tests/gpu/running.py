"""What goes wrong: a run that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lldscope

from .checks import Figures, Place, check

STEPS = 6
PATIENCE = 120.0
"""Seconds that a check waits for a process before it calls it hung."""


def worker(place: Place, run: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.gpu.worker", str(place.small), place.model, str(run)]
    return subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)


@check("killed and resumed", rank=3)
def killed(place: Place) -> tuple[str, Figures]:
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        run = Path(folder) / "run"
        first = worker(place, run)
        end = time.monotonic() + PATIENCE
        try:
            while not list(run.glob("checkpoints/step-*2")):
                assert first.poll() is None, f"it ended: {(first.communicate()[1] or '')[-400:]}"
                assert time.monotonic() < end, f"no checkpoint after {PATIENCE:g} s"
                time.sleep(0.05)
        finally:  # else it would keep the card from the other checks
            first.kill()
            first.communicate()
        again = worker(place, run, "--resume")
        message = again.communicate(timeout=PATIENCE)[1]
        assert again.returncode == 0, message[-400:]
        sample = lldscope.open_run(run)
        steps = sample.signals()["step"].tolist()
        assert steps == list(range(STEPS)), f"the record holds the steps {steps}"
        status = json.loads((run / "run.json").read_text("utf-8"))["status"]
        assert status == "finished", f"the run is {status}"
        went_on = int(sample.sql("select min(step) from steps where attempt > 1").iloc[0, 0])
    return f"went on from step {went_on}, all {STEPS} steps recorded", {"resumed": went_on}
