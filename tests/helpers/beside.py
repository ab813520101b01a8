"""Readers beside writers: `python -m tests.helpers.beside [SECONDS] [WRITERS] [READERS]`.

Writers are processes that record one rank each, with parts merged and removed all the time, and
write into a journal what is sealed. Readers read the run repeatedly: what a journal listed before
the read must be complete, and nothing counted twice. Every other reader reopens the run each time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

try:
    from crash import has_ended, in_child, rows_of
except ImportError:  # as a module of the checkout
    from tests.helpers.crash import has_ended, in_child, rows_of

import lldscope
from lldscope.recording import recorder, writer
from lldscope.storage import compaction


def write(path: Path, rank: int, world_size: int, until: float, journal: Path) -> None:
    writer.SEAL_SECONDS, writer.GRACE_SECONDS, compaction.FAN_IN = 0.05, 5.0, 4
    recorder.FLUSH_SECONDS = 600  # the journal must be true on a busy machine, too
    with lldscope.Recorder(path, rank=rank, attempt=1, world_size=world_size) as r:
        step = 0
        while time.time() < until:
            values = rows_of(1, rank, step)
            r.actions(step=step, response_id=np.arange(len(values)), action_index=0,
                      logp_old_sum=np.array(values))
            r.responses(step=step, response_id=np.arange(len(values)), text=f"step {step}")
            r.step(step=step, n_responses=len(values))
            if step % 5 == 0:
                r.flush()
                journal.write_text(f"{step}")
            step += 1
            time.sleep(0.02)
        assert not r.dropped, r.dropped


def read(path: Path, journals: list[Path], until: float, reopen: bool, report: Path) -> None:
    run, reads = None, 0
    while time.time() < until or not reads:
        sealed = [int(j.read_text() or -1) if j.exists() else -1 for j in journals]
        if run is None or reopen:
            run = lldscope.open_run(path)
        else:
            run.refresh()
        counted = run.sql("SELECT rank, step, count(*) n, sum(logp_old_sum) total, FROM actions "
                          "GROUP BY ALL")
        texts = run.sql("SELECT rank, step, count(*) n FROM responses GROUP BY ALL")
        rows = {(r, s): (n, t) for r, s, n, t in counted.itertuples(index=False)}
        for (rank, step), (n, total) in rows.items():
            values = rows_of(1, rank, step)
            assert (n, total) == (len(values), sum(values)), f"rank {rank} step {step}: {n} rows"
        # A query whose parts are merged meanwhile uses the manifest as it is by then.
        counts = {(r, s): n for r, s, n in texts.itertuples(index=False)}
        assert {key: counts.get(key) for key in rows} == {key: n for key, (n, _) in rows.items()}
        for rank, last in enumerate(sealed):
            missing = [step for step in range(last + 1) if (rank, step) not in rows]
            assert not missing, f"rank {rank}: sealed but not read: {missing}"
        assert len(run.signals()) >= min(sealed) + 1
        assert run.damaged == {}, run.damaged
        reads += 1
    report.write_text(f"{reads} {len(rows)}")


def main(seconds: float = 120, writers: int = 8, readers: int = 4) -> tuple[int, int]:
    """Returns how often the readers read, and how many (rank, step) they read in the end."""
    with tempfile.TemporaryDirectory(prefix="lldscope-beside-") as folder:
        path = Path(folder) / "run"
        journals = [Path(folder) / f"r{rank}" for rank in range(writers)]
        reports = [Path(folder) / f"reader{i}" for i in range(readers)]
        until = time.time() + seconds
        children = [in_child(lambda r=r, j=j: write(path, r, writers, until, j), path)
                    for r, j in enumerate(journals)]
        while not (path / "run.json").exists():
            time.sleep(0.01)
        children += [in_child(lambda i=i, f=f: read(path, journals, until, bool(i % 2), f), path)
                     for i, f in enumerate(reports)]
        failed = []
        for child in children:
            try:
                has_ended(child)
            except AssertionError as error:
                failed.append(str(error))
        assert not failed, failed
        results = [tuple(map(int, f.read_text().split())) for f in reports]
        # On a busy machine a writer may come to nothing in the time there is.
        count = sum(1 + int(j.read_text()) for j in journals if j.exists())
    print(
        f"{writers} writers, {count} steps of a rank in total; {readers} readers, "
        f"{sum(n for n, _ in results)} reads"
    )
    return sum(n for n, _ in results), max(n for _, n in results)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
