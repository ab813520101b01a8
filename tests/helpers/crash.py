"""Real recorders and compactors, killed with SIGKILL: `python -m tests.helpers.crash`.

Each round forks one process per rank. It records steps whose values follow from (attempt, rank,
step), and writes into a journal outside the run which steps were sealed. Half the kills come after
a random time, half right before the n-th time that the process opens, renames or removes a file of
the run, where an incomplete seal or merge would show. After every round the run is read in three
ways and compared with the journals; then the doctor repairs it, or a compactor runs on it and is
killed as well, and it is read again. Ranks resume the run, with overlapping steps.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import lldscope
from lldscope.doctor.checks import examine, repair
from lldscope.doctor.findings import worst
from lldscope.monitor.health import check
from lldscope.recording import recorder, writer
from lldscope.storage import compaction, layout
from lldscope.storage.compaction import compact
from lldscope.storage.manifest import manifest_names, manifest_path
from lldscope.storage.part import Owner

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate"}
STEPS = 40  # of a process that is not killed


def rows_of(attempt: int, rank: int, step: int) -> list[float]:
    """The values of `logp_old_sum` that a rank records for a step."""
    return [-(step + attempt / 8 + rank / 64 + i * 1000) for i in range(1 + (step + rank) % 4)]


def record(path: Path, rank: int, attempt: int, steps: range, journal: Path, seed: int) -> None:
    """One rank. A line in the journal means: this step and all before it are on disk."""
    choose = random.Random(seed)
    writer.SEAL_SECONDS, writer.GRACE_SECONDS = 0.01, choose.choice([0.0, 0.05, 60.0])
    compaction.FAN_IN = 3
    recorder.FLUSH_SECONDS = 600  # the journal must be true on a busy machine, too
    with (
        lldscope.Recorder(path, rank=rank, attempt=attempt, world_size=3, resume=attempt > 1) as r,
        open(journal, "a") as sealed,
    ):
        for step in steps:
            values = rows_of(attempt, rank, step)
            r.updates(step=step, update=np.arange(2), grad_norm=1.0)
            r.actions(step=step, response_id=np.arange(len(values)), action_index=0,
                      logp_old_sum=np.array(values), docs_hash=["a"] * len(values))
            r.step(step=step, n_responses=len(values))
            if choose.random() < 0.5:
                r.flush()
                sealed.write(f"{step}\n")
                sealed.flush()
            elif choose.random() < 0.3:
                time.sleep(0.02)
        assert not r.dropped, r.dropped
    journal.with_suffix(".closed").touch()


def in_child(work: Callable[[], object], run: Path, kill_at: int | None = None) -> int:
    """Fork; in the child do the work, and end by SIGKILL right before the n-th file access.

    Returns the child's process id.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if kill_at is not None:
            left = iter(range(kill_at))
            inside = str(run)

            def count(event: str, arguments: tuple[object, ...]) -> None:
                accessed = event in EVENTS and str(arguments[0]).startswith(inside)
                if accessed and next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(count)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def has_ended(child: int) -> bool:
    """Wait for a child; True if it was killed. Raises if it failed by itself."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert status == 0, f"a process failed by itself: {status}"
    return False


class Trial:
    """One run directory, through attempts, kills, repairs and compactions."""

    def __init__(self, folder: Path, choose: random.Random) -> None:
        self.path, self.journals, self.choose = folder / "run", folder, choose
        self.kills: Counter[str] = Counter()
        self.killed: set[Owner] = set()

    def attempt(self) -> None:
        """All ranks record; some are killed."""
        names = manifest_names(self.path) if self.path.exists() else []
        number = 1 + max((owner.attempt for owner in names), default=0)
        last = max(
            (s for f in self.journals.glob("*.journal") for s in _sealed_steps(f)), default=-1
        )
        first = max(0, last + 1 - self.choose.randrange(4))
        steps = range(first, first + STEPS)
        children = {}
        for rank in range(self.choose.choice([1, 1, 2, 3])):
            journal = self.journals / f"a{number}-r{rank}.journal"
            at = self.choose.randrange(1, 400) if self.choose.random() < 0.5 else None
            seed = self.choose.randrange(2**32)
            arguments = (self.path, rank, number, steps, journal, seed)
            children[in_child(lambda a=arguments: record(*a), self.path, at)] = Owner(number, rank)
            while not manifest_path(self.path, number, rank).exists() and not at:
                time.sleep(0.001)  # rank 0 creates the run, the others join it
        time.sleep(self.choose.random() * 0.3)
        for child in children:
            if self.choose.random() < 0.7:
                os.kill(child, signal.SIGKILL)
        for child, name in children.items():
            if has_ended(child):
                self.kills["recorder"] += 1
                self.killed.add(name)

    def compaction(self) -> None:
        """A compactor that is killed somewhere, perhaps."""
        child = in_child(lambda: compact(self.path), self.path, self.choose.randrange(1, 120))
        self.kills["compactor"] += has_ended(child)

    def repair(self) -> None:
        assert not has_ended(in_child(lambda: repair(examine(self.path)), self.path))

    def verify(self, repaired: bool = False) -> None:
        """In a process of its own, so that the forks come from one without threads."""
        child = in_child(lambda: self._verify(repaired), self.path)
        assert not has_ended(child)

    def _verify(self, repaired: bool) -> None:
        if not (self.path / layout.RUN_FILE).exists():
            if not layout.read_manifest(self.path).parts:
                return
            repair(examine(self.path))  # rank 0 was killed before it wrote run.json
        rows = dict(self._plain_rows())
        for journal in self.journals.glob("*.journal"):
            attempt, rank = (int(x[1:]) for x in journal.stem.split("-"))
            steps = sorted(step for a, r, step in rows if (a, r) == (attempt, rank))
            sealed = max(_sealed_steps(journal), default=None)
            if sealed is not None:
                first = min(steps, default=sealed + 1)
                assert steps[: sealed - first + 1] == list(range(first, sealed + 1)), "rows lost"
            assert steps == list(range(steps[0], steps[0] + len(steps))) if steps else True
            if journal.with_suffix(".closed").exists():
                assert len(steps) == STEPS, "closed, and not complete"
        for (attempt, rank, step), values in rows.items():
            assert sorted(values) == sorted(rows_of(attempt, rank, step)), "not counted once"
        with lldscope.open_run(self.path) as run:
            assert run.damaged == {}, run.damaged
            counted = run.sql(
                "SELECT attempt, rank, step, count(*) n FROM all_actions GROUP BY ALL"
            ).itertuples(index=False)
            assert {tuple(c[:3]): c[3] for c in counted} == {k: len(v) for k, v in rows.items()}
            run.sql("SELECT * FROM signals")
            check(run)
        self._examine(repaired)

    def _plain_rows(self) -> Iterator[tuple[tuple[int, int, int], list[float]]]:
        """Values of `actions` by (attempt, rank, step), read without DuckDB; checks that every
        step is in all tables."""
        tables: dict[str, dict[tuple[int, int, int], list[float]]] = {}
        for part in layout.read_manifest(self.path).parts:
            rows = pq.read_table(part.path(self.path), partitioning=None).to_pylist()
            assert len(rows) == part.rows
            for row in rows:
                key = (row["attempt"], row["rank"], row["step"])
                values = tables.setdefault(part.table, {}).setdefault(key, [])
                values.append(row.get("logp_old_sum", 0.0))
        actions, steps = tables.get("actions", {}), tables.get("steps", {})
        assert actions.keys() == steps.keys() == tables.get("updates", {}).keys(), "half a step"
        assert all(len(v) == 1 for v in steps.values()), "a step twice"
        yield from actions.items()

    def _examine(self, repaired: bool) -> None:
        result = examine(self.path)
        assert worst(result.findings) != "damage", result.findings
        manifest = layout.read_manifest(self.path)
        reported = {(f.what, f.where) for f in result.findings}
        for name in self.killed & set(manifest_names(self.path)) - manifest.closed:
            where = name.words
            # Before its first heartbeat a recorder cannot be told from one that is starting.
            early = not manifest.owners[name]
            findings = {("not-closed", where), *([("recording", where)] if early else [])}
            assert findings & reported, f"{where} was killed, and the doctor does not report it"
        if repaired:
            left = {f.what for f in result.findings}
            assert left <= {"not-closed", "recording"}, result.findings


def _sealed_steps(journal: Path) -> list[int]:
    return [int(line) for line in journal.read_text().split("\n") if line]


def main(kills: int = 500, seed: int = 0) -> Counter[str]:
    """Rounds until so many processes were killed; returns the kills by what was killed."""
    total: Counter[str] = Counter()
    start, number = time.monotonic(), 0
    while total.total() < kills:
        choose = random.Random(f"{seed}-{number}")
        folder = Path(tempfile.mkdtemp(prefix="lldscope-crash-"))
        trial = Trial(folder, choose)
        try:
            for _ in range(choose.randrange(1, 5)):
                trial.attempt()
                trial.verify()
                if choose.random() < 0.4:
                    trial.compaction()
                    trial.verify()
                elif choose.random() < 0.5 and trial.path.exists():
                    trial.repair()
                    trial.verify(repaired=True)
        except BaseException:
            print(f"trial {number} of seed {seed} failed; its files are in {folder}", flush=True)
            raise
        total += trial.kills
        shutil.rmtree(folder)
        number += 1
    words = ", ".join(f"{n} {what}s" for what, n in total.items())
    print(f"{total.total()} kills ({words}) in {number} runs, {time.monotonic() - start:.0f} s")
    return total


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*(int(argument) for argument in sys.argv[1:]))
