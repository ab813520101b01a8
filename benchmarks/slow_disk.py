"""What a kill loses when the disk is slow: every fsync is made to wait before it is done.

python -m benchmarks.slow_disk [SECONDS …]     seconds that an fsync waits

A process records a step with three tables every 20 ms and says which; it is killed at some moment
(SIGKILL), and what it said is compared with what the run has.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lldscope.runs import open_run

WAITS = (0.0, 0.1, 0.5, 1.0)
KILLS = 5
LEAST, MOST = 4.0, 7.0  # seconds until a kill, and four seals more
CHILD = """
import os, sys, time
path, wait = sys.argv[1], float(sys.argv[2])
sync = os.fsync
def slow(fd):
    time.sleep(wait)
    sync(fd)
os.fsync = slow
import numpy as np
import lldscope
rows = np.arange(64)
recorder = lldscope.Recorder(path)
for step in range(10**9):
    recorder.responses(step=step, response_id=rows, reward=rows / 64)
    recorder.actions(step=step, response_id=rows, action_index=0, logp_old_sum=-rows / 64)
    recorder.step(step=step, n_responses=64)
    print(step, time.monotonic(), flush=True)
    time.sleep(0.02)
"""


def main(waits: tuple[float, ...] = WAITS) -> None:
    print("an fsync waits | lost by a kill: seconds of steps, each of the kills")
    for wait in waits:
        losses = sorted(_loss(wait, seed) for seed in range(KILLS))
        print(f"{wait:.1f} s          | {', '.join(f'{s:.1f}' for s in losses)}", flush=True)


def _loss(wait: float, seed: int) -> float:
    """Seconds between the last step that can be read and the last that was recorded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), str(wait)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        entries = [_parse(child.stdout.readline())]
        end = time.monotonic() + random.Random(seed).uniform(LEAST, MOST) + 16 * wait
        while time.monotonic() < end:
            entries.append(_parse(child.stdout.readline()))
        child.kill()
        entries += [_parse(line) for line in child.stdout if line.endswith("\n")]
        child.wait()
        when = dict(entries)
        last = max(when)
        with open_run(path) as run:
            read = run.columns()["step"]
        assert not len(read) or list(read) == list(range(int(read[-1]) + 1)), "a gap"
        return when[last] - (when[int(read[-1])] if len(read) else when[0])


def _parse(line: str) -> tuple[int, float]:
    step, moment = line.split()
    return int(step), float(moment)


if __name__ == "__main__":
    main(tuple(map(float, sys.argv[1:])) or WAITS)
