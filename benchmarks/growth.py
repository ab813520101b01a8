"""One more step of a live run, from its seal to the verdict, by the steps that the run has, and by
the ranks that record it.

python -m benchmarks.growth [CHECKOUT]     in turns with another build: a worktree of it
python -m benchmarks.growth memory STEPS [CHECKOUT]     what the first look at so many steps takes

Processor time in milliseconds: of the whole look, and of it what reads (`refresh`) and what judges
(`check`); and of the first look at all steps. Runs without responses.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import lldscope
from lldscope.monitor.health import check
from lldscope.recording.buffers import to_arrow
from lldscope.runs import Run
from lldscope.storage.manifest import commit
from lldscope.storage.part import Owner, PartName, write_part

HERE = Path(__file__).parents[1]
RUNS = ((100, 1), (100, 8), (100, 64), (1_000, 1), (5_000, 1), (10_000, 1), (100_000, 1))
"""(steps, ranks) of a run."""
LOOKS = 9
SEAL = 10_000  # steps of a seal, in a run that is written at once


def main(*others: str) -> None:
    for size, ranks in RUNS:
        for name, answer in in_turns(others, "look", str(size), str(ranks)):
            first, whole, reads, judges = answer
            print(f"{size:9,} steps of {ranks:2}{name:9} one more {whole:6.0f} ms "
                  f"(reads {reads:.0f}, judges {judges:.0f}); the first look {first:,.0f} ms",
                  flush=True)


def in_turns(others: Sequence[str], *words: str) -> Iterator[tuple[str, Any]]:
    """What this program prints with these words in this build, and in another one."""
    for name, where in [("", HERE), *((" (other)", Path(other)) for other in others)]:
        done = subprocess.run(
            [sys.executable, __file__, *words], cwd=where, stdout=subprocess.PIPE, text=True,
            check=True, env={"PYTHONPATH": str(where), "OMP_NUM_THREADS": "1"},
        )
        yield name, json.loads(done.stdout)


def memory(steps: int, *others: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_at_once(Path(folder) / "run", steps)
        for name, (seconds, peak) in in_turns(others, "first", str(path)):
            print(f"{steps:9,} steps{name:9} {peak:,.0f} MiB at most, {seconds:,.1f} s processor",
                  flush=True)


def write_at_once(path: Path, steps: int) -> Path:
    """A run as `record` makes it, with a part for each table."""
    lldscope.Recorder(path).close()
    x = np.random.default_rng(0).normal(size=(8, steps))
    parts = []
    for table, columns in columns_of(np.arange(steps), x).items():
        arrow = to_arrow(table, columns, 1, 0, refuse)
        assert arrow
        seals = (arrow.slice(row, SEAL) for row in range(0, steps, SEAL))
        part = write_part(path, table, PartName(Owner(1, 0), 1, 1), seals)
        assert part
        parts.append(part)
    commit(path, (1, 0), parts, closed=True)
    return path


def refuse(reason: str, rows: int) -> None:
    raise SystemExit(f"{reason}: {rows}")


def first_look(path: str) -> None:
    """Print, as JSON, seconds and peak memory of the first look at a run."""
    from memory import resident  # beside this file, which runs as a script

    start = time.process_time()
    with Run(Path(path)) as run:
        assert check(run).last_step
    print(json.dumps([time.process_time() - start, resident("self", "VmHWM")]))


def columns_of(step: Any, x: Any) -> dict[str, dict[str, Any]]:
    """By table, made of eight random numbers for a step or for each of several."""
    return {
        "steps": {
            "step": step, "time": 1e9 + step, "n_responses": 128,
            "n_correct": 64 + np.round(4 * x[0]), "n_tokens": 4000, "reward_sum": 64 + x[1],
            "reward_sq_sum": 64 + x[2], "entropy_sum": 4000 + x[3], "kl_sum": abs(x[4]),
            "loss_policy": x[5], "lr": 1e-6, "seconds_update": abs(x[6]),
        },
        "updates": {
            "step": step, "update": 0, "grad_norm": abs(x[7]), "n_clipped": 9, "n_tokens": 4000,
        },
    }


def record(recorder: lldscope.Recorder, step: int, x: list[float]) -> None:
    columns = columns_of(step, x)
    recorder.step(**columns["steps"])
    recorder.updates(**columns["updates"])


def look(size: int, ranks: int) -> None:
    """Print, as JSON, milliseconds of the first look, and medians of those at one step more."""
    numbers = np.random.default_rng(0).normal(size=(size + LOOKS, 8)).tolist()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "run"

        def recorder(rank: int) -> lldscope.Recorder:
            return stack.enter_context(lldscope.Recorder(path, rank=rank, world_size=ranks))

        recorders = [recorder(rank) for rank in range(ranks)]

        def record_all(step: int, flush: bool) -> None:
            for each in recorders:
                record(each, step, numbers[step])
            if flush:
                for each in recorders:
                    each.flush()

        for step in range(size):
            record_all(step, step % 500 == 499 or step == size - 1)
        start = time.process_time()
        run = stack.enter_context(Run(path))
        check(run)
        first = time.process_time() - start
        times = []
        for step in range(size, size + LOOKS):
            record_all(step, True)
            start = time.process_time()
            run.refresh()
            read = time.process_time()
            assert check(run).last_step == step
            end = time.process_time()
            times.append((end - start, read - start, end - read))
    print(json.dumps([1000 * first, *(1000 * median(of) for of in zip(*times, strict=True))]))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["look", size, ranks]:
            look(int(size), int(ranks))
        case ["first", place]:
            first_look(place)
        case ["memory", size, *others]:
            memory(int(size), *others)
        case others:
            main(*others)
