"""Which rows count when ranks are killed and come back, alone or all together."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

import lldscope
from lldscope.core.errors import RunExists
from lldscope.monitor.health import check
from lldscope.query.starts import Starts
from lldscope.storage.compaction import compact
from lldscope.storage.part import Part

TABLES = ("steps", "responses", "actions", "tokens", "scalars", "probes", "evals", "retention")


class Trial:
    """A run whose ranks restart at random. Every row has a number of its own, and an oracle keeps
    which recorder wrote it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.choose = path, random.Random(seed)
        self.size = self.choose.choice([1, 2, 2, 3, 8])
        self.recorders: dict[int, lldscope.Recorder] = {}
        self.rows: dict[int, tuple[str, int, int, int]] = {}  # number → table, rank, step, start
        self.whole: dict[int, int] = {}  # start → ranks, of the starts of the whole run
        self.start = 0
        self.next: dict[int, int] = {}  # rank → its next step

    def record(self, ranks: list[int], steps: int) -> None:
        for _ in range(steps):
            for rank in ranks:
                step, recorder = self.next[rank], self.recorders[rank]
                self.next[rank] += 1
                for table in TABLES:
                    if table == "steps" or self.choose.random() < 0.8:
                        self.row(recorder, table, step)

    def row(self, recorder: lldscope.Recorder, table: str, step: int) -> None:
        number = len(self.rows)
        self.rows[number] = (table, recorder.rank, step, self.start)
        columns = {
            "steps": {"n_responses": number},
            "responses": {"response_id": [0], "n_tokens": number},
            "actions": {"response_id": [0], "action_index": 0, "n_tokens": number},
            "tokens": {"response_id": [0], "position": 0, "token_id": number},
            "retention": {"age": [1], "response_id": 0, "action_index": 0, "n_tokens": number},
            "evals": {"data_source": ["x"], "metric": "em", "value": number},
        }.get(table, {"probe" if table == "probes" else "name": ["x"], "value": number})
        getattr(recorder, "step" if table == "steps" else table)(step=step, **columns)

    def resume(self, size: int) -> None:
        """All ranks begin, or resume at one step; in any order where nobody is told."""
        self.close([*self.recorders])
        self.start += 1
        self.whole[self.start], self.size = size, size
        first = self.choose.randrange(max(self.next.values(), default=0) + 1)
        ranks, tells = list(range(size)), self.choose.random() < 0.5 or self.start == 1
        if not tells:
            self.choose.shuffle(ranks)
        attempt = None
        for rank in ranks:
            self.open(rank, first, attempt)
            attempt = self.recorders[rank].attempt if tells else None
        self.record(ranks, self.choose.randrange(1, 6))

    def restart(self, ranks: list[int]) -> None:
        """Some ranks come back alone, while others go on."""
        self.close(ranks)
        self.start += 1
        for rank in ranks:
            before = self.recorders[next(r for r in self.recorders if r not in ranks)].attempt
            self.open(rank, self.choose.randrange(self.next[rank] + 1), None)
            assert self.recorders[rank].attempt == before
        self.record(ranks, self.choose.randrange(5))

    def open(self, rank: int, first: int, attempt: int | None) -> None:
        self.next[rank] = first
        self.recorders[rank] = lldscope.Recorder(
            self.path, rank=rank, world_size=self.size, resume=self.start > 1, attempt=attempt
        )

    def close(self, ranks: list[int]) -> None:
        for rank in ranks:
            self.recorders.pop(rank).close("failed")

    def run(self) -> None:
        follower = None
        self.resume(self.size)
        for _ in range(self.choose.randrange(1, 7)):
            ranks = list(self.recorders)
            alone = self.choose.sample(ranks, self.choose.randrange(len(ranks)))
            if alone and self.choose.random() < 0.7:
                self.restart(alone)
            else:
                sizes = [self.size] if self.choose.random() < 0.8 else [1, 2, 4]
                self.resume(self.choose.choice(sizes))
            self.record([*self.recorders], self.choose.randrange(4))
            if self.choose.random() < 0.5:
                for recorder in self.recorders.values():
                    recorder.flush()
                follower = follower or lldscope.open_run(self.path)
                follower.refresh()
            if self.choose.random() < 0.2:
                compact(self.path)
        self.close([*self.recorders])
        with lldscope.open_run(self.path) as run:
            self.verify(run)
            assert not check(run).missing
            if follower:
                follower.refresh()
                self.verify(follower)
                pd.testing.assert_frame_equal(follower.signals(), run.signals())

    def verify(self, run: lldscope.run.Run) -> None:
        expected = {n for n in self.rows if not self.superseded(n)}
        for table in TABLES:
            column = {"steps": "n_responses", "tokens": "token_id"}.get(table, "value")
            column = "n_tokens" if table in ("responses", "actions", "retention") else column
            every = run.sql(f"SELECT {column}::INT AS n FROM all_{table}")["n"].tolist()
            visible = run.sql(f"SELECT {column}::INT AS n FROM {table}")["n"].tolist()
            of_table = [n for n in self.rows if self.rows[n][0] == table]
            assert sorted(every) == of_table
            assert sorted(visible) == [n for n in of_table if n in expected], table
        totals = Counter()
        for n in expected:
            if self.rows[n][0] == "steps":
                totals[self.rows[n][2]] += n
        signals = run.signals()
        assert dict(zip(signals["step"], signals["n_responses"], strict=True)) == totals

    def superseded(self, number: int) -> bool:
        """By a row of its own rank and step, or by a whole run that went back to before it."""
        table, rank, step, start = self.rows[number]
        later = [row for row in self.rows.values() if row[3] > start]
        mine = [row for row in later if row[1] == rank]
        if table == "evals":  # of the policy before the step
            repeated = any(row[:3] == ("evals", rank, step) for row in mine)
            step -= 1
        else:
            repeated = any(row[2] == step and row[0] in ("steps", "responses") for row in mine)
        return repeated or any(
            (row[1] == rank or rank >= size) and row[0] == "steps" and row[2] <= step
            for row in later for begin, size in self.whole.items()
            if start < begin <= row[3] < min([s for s in self.whole if s > begin], default=10**9)
        )


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]
)
def test_every_row_counts_once_or_is_superseded_by_one_of_its_own_rank(tmp_path, seed):
    Trial(tmp_path / "run", seed).run()


def per_rank(run: lldscope.run.Run, table: str = "steps") -> dict[int, list[int]]:
    rows = run.rows(f"SELECT rank, list(step ORDER BY step) FROM {table} GROUP BY rank").rows
    return dict(rows)


def step_of(recorder: lldscope.Recorder, steps: range) -> None:
    for step in steps:
        recorder.responses(step=step, response_id=[0], n_tokens=step)
        recorder.step(step=step, n_responses=1)
    recorder.flush()


def test_a_rank_that_comes_back_hides_no_row_of_its_sister(tmp_path):
    path = tmp_path / "run"
    with lldscope.Recorder(path, world_size=2) as first:
        step_of(first, range(100))
        for steps in (range(60), range(50, 55), range(55, 100)):
            with lldscope.Recorder(path, rank=1, world_size=2, resume=steps[0] > 0) as again:
                assert again.attempt == 1
                step_of(again, steps)
    with lldscope.open_run(path) as run:
        every = {0: [*range(100)], 1: [*range(100)]}
        assert per_rank(run) == per_rank(run, "responses") == every
        assert len(run.rows("FROM all_steps").rows) == 210
        assert set(run.signals()["n_responses"]) == {2}
        assert run.rows("FROM attempts").rows == [
            (1, 0, 1, 0, 99, None), (1, 1, 1, 0, 59, None), (1, 1, 2, 50, 54, None),
            (1, 1, 3, 55, 99, None),
        ]
        state = check(run)
        assert (state.unclear, state.life, state.damaged) == ({}, "finished", {})
        assert not run.assess().evidence.restarts


@pytest.mark.parametrize("attempt", [None, 2])
def test_a_rank_that_comes_back_when_its_sister_has_ended_is_named_and_hides_nothing(
    tmp_path, attempt
):
    path = tmp_path / "run"
    for rank in (0, 1):
        with lldscope.Recorder(path, rank=rank, world_size=2) as recorder:
            step_of(recorder, range(10))
    with lldscope.Recorder(path, rank=1, world_size=2, resume=True, attempt=attempt) as recorder:
        assert recorder.attempt == 2
        step_of(recorder, range(6, 8))
    with lldscope.open_run(path) as run:
        assert per_rank(run) == {0: [*range(10)], 1: [*range(10)]}
        assert run.unclear == check(run).unclear == {
            "whether the whole run resumed at step 6":
            "rank 1 began attempt 2 without rank 0; all earlier rows that were not recorded again "
            "count",
        }
        assert not run.assess().evidence.restarts
        with lldscope.Recorder(path, world_size=2, resume=True) as recorder:
            assert recorder.attempt == 2  # that its sister is in
            step_of(recorder, range(5, 7))
        run.refresh()
        assert per_rank(run) == {0: [*range(7)], 1: [*range(8)]}  # a history was given up
        assert not run.unclear
        assert run.assess().evidence.restarts == {5: "resume"}
        with lldscope.open_run(path) as fresh:
            pd.testing.assert_frame_equal(run.signals(), fresh.signals())


def test_a_rank_that_was_told_the_attempt_of_a_live_process_is_refused(tmp_path):
    options = {"rank": 1, "attempt": 1, "resume": True}
    path = tmp_path / "run"
    with lldscope.Recorder(path):
        with lldscope.Recorder(path, **options), pytest.raises(RunExists, match="rank 1"):
            lldscope.Recorder(path, **options)
        with lldscope.Recorder(path, **options) as again:
            assert again.attempt == 1


def test_ranks_that_a_smaller_attempt_leaves_out_give_up_their_rows():
    spans = [(1, rank, 0) for rank in range(4)] + [(2, rank, 5) for rank in range(2)]
    parts = [Part("steps", f"a{attempt}-r{rank}-000001.parquet", 1, 1, first, 9)
             for attempt, rank, first in spans]
    assert Starts(parts, {1: 4, 2: 2}).limits == {(1, rank): 5 for rank in range(4)}
    assert Starts(parts, {1: 4}).unclear == {2: [2, 3]}, "they may yet come"
