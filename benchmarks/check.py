"""`lldscope check` on a sample run, from the shell: processor time of the whole process.

Modules are compiled before, as those of an installed package are; signals are not kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from lldscope.runs import find_runs

SAMPLES = Path(__file__).parents[1] / "sample_runs"
ROUNDS = 7


def main() -> None:
    run = find_runs(SAMPLES)[0]
    lldscope = [sys.executable, "-m", "lldscope", "check"]
    command = [[sys.executable, "-c", "import duckdb, pandas"], [*lldscope, str(run)]]
    python, check, help_ = timed([*command, [*lldscope, "--help"]])
    print(f"lldscope check {run.name:12} {check:.2f} s (median of {ROUNDS}, in turns)")
    print(f"import duckdb, pandas       {python:.2f} s; check / import {check / python:.2f}")
    print(f"lldscope check --help       {help_:.2f} s")


def timed(commands: list[list[str]]) -> list[float]:
    """Processor seconds of each command, in turns, so that other work meets all alike."""
    seconds: list[list[float]] = [[] for _ in commands]
    with tempfile.TemporaryDirectory() as folder:
        extra = {"PYTHONPYCACHEPREFIX": f"{folder}/pyc", "XDG_CACHE_HOME": folder}
        where = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | extra
        for _ in range(1 + ROUNDS):
            for command, used in zip(commands, seconds, strict=True):
                used.append(_used(command, where))
    return [median(used[1:]) for used in seconds]


def _used(command: list[str], where: dict[str, str]) -> float:
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=where
    )
    _, _, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
