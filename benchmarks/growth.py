"""One more step of a live run, from its seal to the verdict, by the steps that the run has, and by
the ranks that record it.

python -m benchmarks.growth [CHECKOUT]     in turns with another build: a worktree of it

Processor time in milliseconds: of the whole look, and of it what reads (`refresh`) and what judges
(`check`); and of the first look at all steps. Runs without responses.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np

import lldscope
from lldscope.monitor.health import check
from lldscope.runs import Run

HERE = Path(__file__).parents[1]
RUNS = ((100, 1), (100, 8), (100, 64), (1_000, 1), (5_000, 1), (10_000, 1), (100_000, 1))
"""(steps, ranks) of a run."""
LOOKS = 9


def main(other: str | None = None) -> None:
    builds = {"": HERE, **({" (other)": Path(other)} if other else {})}
    for size, ranks in RUNS:
        for name, where in builds.items():
            command = [sys.executable, __file__, "look", str(size), str(ranks)]
            done = subprocess.run(
                command, cwd=where, env={"PYTHONPATH": str(where), "OMP_NUM_THREADS": "1"},
                capture_output=True, text=True, check=True,
            )
            first, whole, reads, judges = json.loads(done.stdout)
            print(f"{size:9,} steps of {ranks:2}{name:9} one more {whole:6.0f} ms "
                  f"(reads {reads:.0f}, judges {judges:.0f}); the first look {first:,.0f} ms",
                  flush=True)


def record(recorder: lldscope.Recorder, step: int, x: list[float]) -> None:
    recorder.step(
        step=step, time=1e9 + step, n_responses=128, n_correct=64 + round(4 * x[0]), n_tokens=4000,
        reward_sum=64 + x[1], reward_sq_sum=64 + x[2], entropy_sum=4000 + x[3], kl_sum=abs(x[4]),
        loss_policy=x[5], lr=1e-6, seconds_update=abs(x[6]),
    )
    recorder.updates(step=step, update=0, grad_norm=abs(x[7]), n_clipped=9, n_tokens=4000)


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
    if sys.argv[1:2] == ["look"]:
        look(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main(*sys.argv[1:])
