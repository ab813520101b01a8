"""The index of a folder of runs: it saves time, and is never believed against the runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from recorded_steps import record_steps
from sealed_runs import make_unreadable

import lldscope
from lldscope.cli.runs import rows_below
from lldscope.monitor import summary as summary_room
from lldscope.monitor.health import check
from lldscope.monitor.run_index import RunIndex, fingerprint
from lldscope.monitor.summary import Summary
from lldscope.monitor.summary import read_many as in_processes
from lldscope.query.contents import RunBatch
from lldscope.storage import cache
from lldscope.storage.notes import write_about

NAMES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    for name, steps in zip(NAMES, (30, 6, 6), strict=True):
        with lldscope.Recorder(folder / name) as recorder:
            record_steps(recorder, range(steps))
            recorder.evals(step=steps, metric="em_greedy", value=0.5, n=4)
    return folder


@pytest.fixture
def root(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shutil.copytree(recorded, tmp_path / "runs")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were opened."""
    names: list[str] = []

    def note(places: dict[str, Any], place: Any) -> Any:
        names.extend(places)
        return in_processes(places, place)

    monkeypatch.setattr(summary_room, "read_many", note)
    return names


def read_index(root: Path) -> list[Any]:
    """What a list says of the runs, without their age."""
    rows = rows_below(root)
    for row in rows:
        row.pop("last_row_age_seconds", None)
    return [(row["path"], row) for row in json.loads(json.dumps(rows))]


def read_summaries(root: Path) -> list[Summary]:
    """What the index keeps of the runs."""
    rows_below(root)
    index = RunIndex(root)
    summaries = [index.get(name, fingerprint(root / name)) for name in NAMES]
    return [summary for summary in summaries if summary is not None]


def test_a_second_list_opens_no_run_and_says_the_same(root: Path, read: list[str]) -> None:
    before = sorted(root.rglob("*"))
    first = read_index(root)
    assert read == NAMES
    assert read_index(root) == first
    assert read == NAMES
    assert sorted(root.rglob("*")) == before, "nothing is written among the runs"


def _of_two_ranks(run: Path) -> None:
    for rank in range(2):
        with lldscope.Recorder(run, rank=rank, world_size=2) as recorder:
            record_steps(recorder, range(5, 25), seed=rank)


def _imported(run: Path) -> None:
    with lldscope.Recorder(run) as recorder:
        for step in range(20):
            recorder.step(step=step, reward_sum=float("nan"), n_responses=4)
            recorder.scalars(step=step, name=["reward", "kl"], value=[step / 20, float("inf")])
            recorder.evals(step=step, data_source=["a"], metric="em_greedy", value=0.5, n=9)


def _without_tokens(run: Path) -> None:
    with lldscope.Recorder(run) as recorder:
        for step in range(3):
            recorder.step(step=step, loss_policy=-0.5)


def record_more(run: Path, steps: range, **options: Any) -> None:
    with lldscope.Recorder(run, **options) as recorder:
        record_steps(recorder, steps)


KINDS: dict[str, Callable[[Path], None]] = {
    "imported": _imported, "resumed": lambda run: record_more(run, range(9)),
    "empty": lambda run: lldscope.Recorder(run).close(), "two": _of_two_ranks,
    "small": _without_tokens, "lost": lambda run: record_more(run, range(7, 13)),
    "unreadable": lambda run: record_more(run, range(4)),
}


@pytest.mark.parametrize("kinds", [[*KINDS][:-1], ["small", "unreadable"]])
def test_runs_that_are_read_together_say_what_each_says_alone(
    root: Path, kinds: list[str]
) -> None:
    for kind in kinds:
        KINDS[kind](root / kind)
    for kind, change in {
        "resumed": _resumed, "lost": _lost_part, "unreadable": make_unreadable
    }.items():
        if kind in kinds:
            change(root / kind)
    names = ["a", *kinds]
    with closing(RunBatch(root)) as batch:
        runs = {name: lldscope.runs.open_run(root / name, root, batch=batch) for name in names}
        waiting = {name for name, run in runs.items() if not run.has_signals}
        assert waiting == {*names} - {"empty", "resumed"}
        batch.compute()
    assert {name for name, run in runs.items() if not run.has_signals} == (
        waiting if "unreadable" in kinds else set()
    )
    for name, run in runs.items():
        run.refresh()
        with lldscope.open_run(root / name) as alone, run:
            for table in ("signals", "action_signals"):
                frames = [getattr(one, table)() for one in (run, alone)]
                frames = [frame.sort_values([*frame][:3], ignore_index=True) for frame in frames]
                pd.testing.assert_frame_equal(*frames, rtol=1e-12)
            assert run.damaged == alone.damaged
            states = [replace(check(one), last_row_age_seconds=None) for one in (run, alone)]
            assert states[0] == states[1]


def test_what_a_list_says_is_what_check_says(
    root: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary_room, "SHARE", 1)
    monkeypatch.setattr(summary_room.os, "cpu_count", lambda: 2)  # two processes read
    read_index(root)
    assert read == NAMES
    for row, summary in zip(rows_below(root), read_summaries(root), strict=True):
        with lldscope.open_run(root / summary.name) as run:
            state = check(run)
            assert summary.last_time == run.signals()["time"].max()
        assert row["verdict"] == state.verdict
        assert row["firing"] == [alert.rule for alert in state.firing]
        assert summary.state is not None
        ages = row["last_row_age_seconds"], summary.state.last_row_age_seconds
        assert ages == pytest.approx([state.last_row_age_seconds] * 2, abs=60)
        assert (summary.state.verdict, summary.state.firing) == (state.verdict, state.firing)
    assert read == NAMES


def _resumed(run: Path) -> None:
    with lldscope.Recorder(run, resume=True) as recorder:
        record_steps(recorder, range(30, 33))


def _lost_part(run: Path) -> None:
    next((run / "actions").iterdir()).unlink()


CHANGES: dict[str, Callable[[Path], Any]] = {
    "resumed": _resumed,
    "lost part": _lost_part,
    "renamed": lambda run: write_about(run, "name", "another"),
    "run.json": lambda run: (run / "run.json").write_text("{"),
    "manifest": lambda run: next((run / "manifest").iterdir()).write_text(""),
}


def test_a_run_that_changed_is_read_again(root: Path, read: list[str]) -> None:
    before = dict(read_index(root))
    for what, change in CHANGES.items():
        read.clear()
        change(root / "b")
        after = dict(read_index(root))
        assert (read, after["a"]) == (["b"], before["a"]), what
        assert after["b"] != before["b"], what
        before = after


def state_file() -> Path:
    (file,) = (cache.cache_dir() / "lists").glob("*/state.json")
    return file


DAMAGES: list[Callable[[Path], Any]] = [
    Path.unlink,
    lambda file: file.write_bytes(file.read_bytes()[:-30]),
    lambda file: file.write_bytes(b""),
    lambda file: file.write_text(file.read_text().replace('"code": "', '"code": "another ')),
    lambda file: file.write_text(re.sub(r'\["\w{32}"', f'["{"0" * 32}"', file.read_text())),
    lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
    lambda file: (file.unlink(), file.mkdir()),
    lambda file: (shutil.rmtree(file.parents[1]), file.parents[1].write_text("no folder")),
]


def test_a_damaged_index_costs_time_only(root: Path, read: list[str]) -> None:
    first = read_index(root)
    for number, damage in enumerate(DAMAGES):
        damage(state_file())
        read.clear()
        assert (read_index(root), read) == (first, NAMES), number


def test_a_live_run_is_read_every_time(root: Path, read: list[str]) -> None:
    with lldscope.Recorder(root / "d") as recorder:
        record_steps(recorder, range(30))
        recorder.flush()
        read_index(root)
        read_index(root)
    assert read == [*NAMES, "d", "d"]


def test_what_time_alone_can_change_is_not_kept(root: Path) -> None:
    summary = read_summaries(root)[0]
    assert summary.state is not None
    index = RunIndex(root)
    for changes, is_kept in (
        ({"life": "live"}, False), ({"life": "stalled"}, True),
        ({"silenced": {"lld-decay": None}}, True), ({"silenced": {"lld-decay": 9e11}}, False),
    ):
        one = replace(summary, name=f"{changes}", state=replace(summary.state, **changes))
        index.put(one, "files")
        assert (index.get(one.name, "files") is not None) == is_kept, changes


@pytest.mark.slow
def test_processes_that_write_at_once_leave_an_index_that_can_be_read(root: Path) -> None:
    code = "import sys; from lldscope.cli import cli; cli(['runs', sys.argv[1], '--json'])"
    command = [sys.executable, "-c", code, str(root)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    answers = [json.loads(process.communicate()[0]) for process in running]
    assert all([row["path"] for row in rows] == NAMES for rows in answers)
    index = RunIndex(root)
    assert all(index.get(name, fingerprint(root / name)) is not None for name in NAMES)


def test_runs_that_are_gone_leave_the_index_when_it_is_written(root: Path) -> None:
    read_index(root)
    (root / "b").rename(root.parent / "b")
    write_about(root / "a", "note", "read again")
    read_index(root)
    assert sorted(RunIndex(root)._entries) == ["a", "c"]


def test_another_version_of_the_rules_reads_again(
    root: Path, read: list[str], monkeypatch: Any
) -> None:
    read_index(root)
    monkeypatch.setattr(cache, "code_version", lambda: "other rules")
    read_index(root)
    assert read == [*NAMES, *NAMES]
