"""A run that is recorded, killed, resumed, read and served for a long time.

python -m tests.soak [MINUTES]      60 by default

One process records twenty steps a second and writes elsewhere which are flushed; it is killed every
half minute and resumes. Another one serves the dashboard and is restarted every two minutes, this
one reads the run. At the end every flushed step must be there, once and undamaged, and the memory
of readers must not have grown from the second to the last third of the time.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from browsing import BEARER, Server

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.monitor.health import check

KILL_SECONDS, RESTART_SECONDS, LOOK_SECONDS = (20.0, 40.0), 120.0, 5.0
MOST_GROWTH = 1.25  # of memory, from the second to the last third
RECORDER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
import numpy as np, lldscope
path, journal, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
rows = np.arange(16)
with lldscope.Recorder(path, resume=True) as recorder, open(journal, "a") as flushed:
    for step in range(first, 10**9):
        recorder.responses(step=step, response_id=rows, reward=rows % 2, text=["an answer"] * 16)
        recorder.actions(step=step, response_id=rows, action_index=0, n_tokens=8,
                         logp_old_sum=-rows / 16.0, logp_post_sum=-rows / 16.0)
        recorder.step(step=step, n_responses=16, reward_sum=8.0)
        if step % 20 == 19:
            recorder.flush()
            print(step, file=flushed, flush=True)
        time.sleep(0.05)
"""


def main(minutes: float) -> None:
    with tempfile.TemporaryDirectory(prefix="lldscope-soak-") as folder:
        place, journal = Path(folder) / "runs" / "soak", Path(folder) / "journal"
        place.parent.mkdir()
        journal.touch()
        end = time.monotonic() + 60 * minutes
        memory: dict[str, list[float]] = {"reader": [], "dashboard": [], "recorder": []}
        dice, kills, restarts, looks = random.Random(0), 0, 0, 0
        recorder, server = _record(place, journal), Server(place.parent, Path(folder) / "cache")
        kill_at = time.monotonic() + dice.uniform(*KILL_SECONDS)
        restart_at = time.monotonic() + RESTART_SECONDS
        run = None
        while time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            if time.monotonic() > kill_at:
                recorder.send_signal(signal.SIGKILL)
                recorder.wait()
                recorder, kills = _record(place, journal), kills + 1
                kill_at = time.monotonic() + dice.uniform(*KILL_SECONDS)
            if time.monotonic() > restart_at:
                server.stop()
                server.start()
                restarts, restart_at = restarts + 1, time.monotonic() + RESTART_SECONDS
            for path in ("/", "/run/soak", "/metrics"):
                request = Request(server.address + path, headers=BEARER)
                with urlopen(request, timeout=300) as answer:
                    answer.read()
            try:
                run = run or lldscope.open_run(place)
            except LldscopeError:  # it has only just begun
                continue
            run.refresh()
            check(run)
            looks += 1
            pids = {
                "reader": os.getpid(),
                "dashboard": server.process.pid,
                "recorder": recorder.pid,
            }
            for name, pid in pids.items():
                memory[name].append(_megabytes(pid))
        recorder.send_signal(signal.SIGINT)
        recorder.wait()
        server.stop()
        _tell(place, journal, memory, minutes, kills, restarts, looks)


def _record(place: Path, journal: Path) -> subprocess.Popen[bytes]:
    flushed = [int(line) for line in journal.read_text().split()]
    first = flushed[-1] + 1 if flushed else 0
    command = [sys.executable, "-c", RECORDER, str(place), str(journal), str(first)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def _megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")] or ["VmRSS: 0 kB"]
    return int(line.split()[1]) / 1024


def _tell(
    place: Path, journal: Path, memory: dict[str, list[float]], minutes: float, kills: int,
    restarts: int, looks: int,
) -> None:
    flushed = [int(line) for line in journal.read_text().split()]
    with lldscope.open_run(place) as run:
        steps = run.sql("SELECT step, count(*) n FROM steps GROUP BY step ORDER BY step")
        damaged = run.damaged
    print(f"{minutes:g} min: {len(steps)} steps, {kills} kills, {restarts} restarts, {looks} reads")
    assert damaged == {}, damaged
    missing = set(range(flushed[-1] + 1)) - set(steps.step)
    assert not missing, f"flushed and not there: {sorted(missing)[:10]}"
    assert set(steps.n) == {1}
    for name, values in memory.items():
        if (third := len(values) // 3) < 4:
            continue  # too short a time to say
        before, after = median(values[third : 2 * third]), median(values[2 * third :])
        print(f"memory of the {name:9} {before:6.0f} MB, then {after:6.0f} MB")
        assert name == "recorder" or after < MOST_GROWTH * before, f"the {name} grows"


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
