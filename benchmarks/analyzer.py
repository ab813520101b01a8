"""The analyzer on 10,000,000 rows of actions: all signals from nothing, again, and step by step.

python -m benchmarks.analyzer [RUN]     RUN: as `benchmarks.long_run` made it; else one is made
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import duckdb

import lldscope
from lldscope.core.schema import TABLES
from lldscope.monitor.health import check
from lldscope.query.signal_cache import SignalCache
from lldscope.runs import Run

from .long_run import write_long_run, write_steps
from .memory import resident

LIVE = (500, 500, 4)  # steps, responses and actions of the run that is followed
JOIN = """SELECT count(correct) FROM '{run}/actions/*.parquet'
    LEFT JOIN '{run}/responses/*.parquet' USING (step, rank, response_id)"""
BY_RESPONSE = """SELECT step, rank, response_id, count(*), sum(n_tokens), sum(logp_old_sum::DOUBLE),
        sum(logp_post_sum::DOUBLE), count(logp_post_sum), sum(rounding_sq_sum::DOUBLE)
    FROM '{run}/actions/*.parquet' GROUP BY ALL"""
"""What any Δ of responses by class rests on."""
FOLLOWED = 30  # steps that are added to it, one by one


def main(run: Path | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = run or write_long_run(Path(folder) / "long")
        (rows,) = duckdb.execute(f"SELECT count(*) FROM '{run}/actions/*.parquet'").fetchall()[0]
        print(f"rows of actions             {rows:,}")
        print(
            f"Δ by step and action        {least(lambda: one_pass(run)):.2f} s in DuckDB, no join"
        )
        scan = least(lambda: plain_aggregate(run))
        print(
            f"plain aggregate in DuckDB   {scan:.2f} s (all that signals need of actions, by step)"
        )
        for what, of in (("joined with responses", JOIN), ("six sums by response", BY_RESPONSE)):
            query = of.format(run=run)
            print(f"{what:27} {least(lambda query=query: duckdb.execute(query)):.2f} s in DuckDB")
        # In a process of its own: what it needs at most is told of a whole process.
        code = f"from benchmarks.analyzer import signals; signals({str(run)!r}, {scan})"
        subprocess.run([sys.executable, "-c", code], check=True)
        follow(Path(folder) / "live")


def least(work: Callable[[], object], rounds: int = 3) -> float:
    """Processor seconds of the cheapest round."""
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def one_pass(run: Path) -> None:
    duckdb.execute(
        "SELECT step, action_index, avg(logp_post_sum - logp_old_sum) "
        f"FROM '{run}/actions/*.parquet' GROUP BY ALL"
    ).fetchall()


def plain_aggregate(run: Path) -> None:
    """The columns of actions that signals are computed from, added up by step: the least that
    anything can cost which reads these rows."""
    calls = {"text": "max", "bool": "bool_or"}
    unread = {"step", "kind", "logp_ref_sum", "drop_sum", "entropy_sum", "llds_sum"}
    sums = [
        f"{calls.get(c.kind, 'sum')}({c.name})" for c in TABLES["actions"].columns
        if c.name not in unread
    ]
    duckdb.execute(
        f"SELECT step, {', '.join(sums)} FROM '{run}/actions/*.parquet' GROUP BY step"
    ).fetchall()


def signals(path: str, scan: float) -> None:
    """Open, compute every signal, assess; then again from what the first look has kept."""
    with tempfile.TemporaryDirectory() as folder:
        cache = SignalCache(Path(folder))
        _look(path, scan, cache)
        start = time.process_time()
        with Run(Path(path), cache) as run:
            check(run)
        again = time.process_time() - start
        print(f"the same, kept signals      {again:.2f} s, / plain aggregate {again / scan:.1f}")


def _look(path: str, scan: float, cache: SignalCache) -> None:
    start = time.process_time()
    run = Run(Path(path), cache)
    seconds = time.process_time() - start
    verdict = check(run).verdict
    whole = time.process_time() - start
    print(f"all signals                 {seconds:.2f} s, verdict ({verdict}) after {whole:.2f} s")
    print(f"verdict / plain aggregate   {whole / scan:.1f}")
    print(f"memory at most              {_peak():,.0f} MiB, libraries included")


def _peak() -> float:
    return resident("self", "VmHWM")


def follow(path: Path) -> None:
    """A new step of 2,000 actions, from its seal to the verdict, in processor time."""
    write_long_run(path, *LIVE)
    first = LIVE[0]
    seconds = []
    with Run(path) as run, lldscope.Recorder(path, resume=True) as recorder:
        check(run)
        for step in write_steps(recorder, first + FOLLOWED, *LIVE[1:], time.time(), first=first):
            recorder.flush()
            start = time.process_time()
            run.refresh()
            check(run)
            seconds.append(time.process_time() - start)
            assert run.assess().last_step == step, "the new step is not there"
    print(
        f"one step more               {1000 * median(seconds):.0f} ms processor time (median of "
        f"{FOLLOWED}, longest {1000 * max(seconds):.0f} ms), run of {first} steps"
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
