"""`lldscope check` on a sample run, from the shell: processor time of the whole process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from lldscope.runs import find_runs

SAMPLES = Path(__file__).parents[2] / "sample_runs"
ROUNDS = 7


def main() -> None:
    run = find_runs(SAMPLES)[0]
    python = timed([sys.executable, "-c", "import duckdb, pandas"])
    check = timed([sys.executable, "-m", "lldscope", "check", str(run)])
    help_ = timed([sys.executable, "-m", "lldscope", "check", "--help"])
    print(f"lldscope check {run.name:12} {check:.2f} s (median of {ROUNDS})")
    print(f"import duckdb, pandas       {python:.2f} s; check / import {check / python:.2f}")
    print(f"lldscope check --help       {help_:.2f} s")


def timed(command: list[str]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, _, used = os.wait4(process.pid, 0)
        seconds.append(used.ru_utime + used.ru_stime)
    return median(seconds)


if __name__ == "__main__":
    main()
