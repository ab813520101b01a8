"""Importing logs of other trainers: lines and bytes a second of processor time, and peak memory.

python -m benchmarks.importing [MEGABYTES]

Two logs of 200 MB, made here: a console of verl in what Ray collects (one line in nine holds 53
metrics) and the same steps as JSON lines of verl's file logger. Each is imported by the command, in
a process of its own, whose time and memory are the system's count.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

MEGABYTES = 200
METRICS = [
    "critic/score/mean", "actor/entropy", "actor/grad_norm", "response_length/mean",
    *(f"timing_s/part_{i}" for i in range(49)),
]
NOISE = "(WorkerDict pid=4242) WARNING 11-21 20:00:00 [cache.py:51] 17 blocks are free, 3 in use\n"

STARTER = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def main(megabytes: int = MEGABYTES) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in (("train.log", console_lines()), ("metrics.jsonl", json_lines())):
            path = Path(folder) / name
            n = write(path, lines, megabytes * 1_000_000)
            run = Path(folder) / "run"
            seconds, peak = cost([sys.executable, "-m", "lldscope", "import", path, "--to", run])
            shutil.rmtree(run)
            print(
                f"{name:14} {megabytes} MB, {n:,} lines: {seconds:.1f} s of processor time, "
                f"{megabytes / seconds:.0f} MB/s, {n / seconds:,.0f} lines/s, peak {peak:.0f} MB"
            )
            path.unlink()


def entries() -> Iterator[tuple[int, dict[str, float]]]:
    draw = random.Random(0)
    for step in count(1):
        yield step, {name: draw.gauss(0.5, 0.1) for name in METRICS}


def console_lines() -> Iterator[str]:
    for step, values in entries():
        yield " - ".join([f"step:{step}", *(f"{k}:{v!r}" for k, v in values.items())]) + "\n"
        yield from [NOISE] * 8


def json_lines() -> Iterator[str]:
    for step, values in entries():
        yield json.dumps({"step": step, "data": values}) + "\n"


def write(path: Path, lines: Iterator[str], size: int) -> int:
    """Write lines until there are `size` bytes; how many there are."""
    n = 0
    with path.open("w") as file:
        while size > 0:
            size -= file.write(next(lines))
            n += 1
    return n


def cost(command: list[str | Path]) -> tuple[float, float]:
    """Processor time in seconds and peak memory in MB of a command, which has to succeed. A small
    process starts it: the system counts the memory of the one that starts another as its own."""
    starter = [sys.executable, "-c", STARTER, *map(str, command)]
    done = subprocess.run(starter, check=True, capture_output=True, text=True)
    seconds, kilobytes = done.stdout.split()[-2:]
    return float(seconds), int(kilobytes) * 1024 / 1e6


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
