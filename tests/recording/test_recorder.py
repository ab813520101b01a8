"""The recorder: rows arrive as given, what cannot be recorded is counted, nothing is raised."""

from __future__ import annotations

import errno
import inspect
import json
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from crash import has_ended, in_child
from recorded_steps import wait_until

import lldscope
from lldscope.core.schema import TABLES
from lldscope.recording import sealer, writer
from lldscope.recording.recorder import FailOpen
from lldscope.storage import compaction, heartbeats, json_files, layout, part


def rows(path: Path, table: str) -> list[dict]:
    """All rows that the manifest lists, read without lldscope's own reader."""
    parts = [p for p in layout.read_manifest(path).parts if p.table == table]
    return [row for p in parts for row in pq.read_table(p.path(path)).to_pylist()]


def steps_of(path: Path, table: str = "steps") -> list[int]:
    return [row["step"] for row in rows(path, table)]


def events_of(path: Path) -> list[dict[str, Any]]:
    return json_files.read_lines(path / layout.EVENTS_FILE)[0]


def test_values_arrive_as_they_were_given(tmp_path):
    with lldscope.Recorder(tmp_path / "r", config={"lr": 0.5}, correct_rule="exact match") as r:
        r.responses(step=0, response_id=[0, 1, 2], reward=[1.0, None, float("nan")], text="x")
        r.actions(
            step=0,
            response_id=np.array([0, 1]),
            action_index=0,
            logp_old_sum=np.ma.array([-1.5, -2.5], mask=[False, True]),
        )
        r.step(step=0, reward_sum=float("inf"), n_responses=3)
    responses = rows(tmp_path / "r", "responses")
    assert [x["text"] for x in responses] == ["x"] * 3
    assert responses[0]["reward"] == 1.0
    assert responses[1]["reward"] is None  # NULL is not 0 …
    assert np.isnan(responses[2]["reward"])  # … and NaN is not NULL
    assert [x["logp_old_sum"] for x in rows(tmp_path / "r", "actions")] == [-1.5, None]
    (step,) = rows(tmp_path / "r", "steps")
    assert step["reward_sum"] == float("inf")
    assert (step["attempt"], step["rank"]) == (1, 0)
    info = layout.read_run(tmp_path / "r")
    assert info["config"] == {"lr": 0.5}
    assert info["correct_rule"] == "exact match"
    assert info["status"] == "finished"


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "i8", "f4", "f8", ">f8", "f2", "?", "m8[s]"])
def test_arrays_of_any_type_arrive(tmp_path, dtype):
    """Plain ones, strided, masked and of a subclass, as they were when the call was made."""

    class Special(np.ndarray):
        pass

    kinds = (
        lambda x: x, lambda x: x[::2], lambda x: x.view(Special),
        lambda x: np.ma.array(x, mask=np.arange(len(x)) % 3 == 0),
    )
    expected = []
    with lldscope.Recorder(tmp_path / "r") as r:
        for step, kind in enumerate(kinds):
            column = kind((np.arange(10 + step) % 5).astype(dtype))
            expected.append(column.tolist())
            r.actions(step=step, response_id=np.arange(len(column)), action_index=0,
                      n_tokens=np.arange(len(column)), logp_old_sum=column)
            column[:] = 1
            r.step(step=step)
    columns: dict[int, list] = {}
    for row in rows(tmp_path / "r", "actions"):
        assert row["n_tokens"] == row["response_id"]
        columns.setdefault(row["step"], []).append(row["logp_old_sum"])
    if dtype == "m8[s]":
        assert any(name.startswith("actions.logp_old_sum") for name in r.dropped)
        assert [*map(len, columns.values())] == [*map(len, expected)]
        return
    assert r.dropped == {}
    for step, values in enumerate(expected):
        assert columns[step] == [None if v is None else float(v) for v in values]


@pytest.mark.parametrize(
    ("columns", "left", "reason", "count"),
    [
        ({"response_id": [0, 1], "n_tokens": [1]}, [], "columns of different lengths", 2),
        ({"response_id": [0], "rewrad": [1.0]}, [(0, None)], ".rewrad: not a column", 1),
        ({"n_tokens": [1]}, [], "a required column is missing", 1),
        ({"response_id": [0, 2**40, 2], "n_tokens": [1, 2, 3]}, [(0, 1), (2, 3)],
         "a required column is missing", 1),
        ({"response_id": np.array([2**40, 1])}, [(1, None)], "a required column is missing", 1),
        ({"response_id": [0], "n_tokens": [2.5]}, [(0, None)], ".n_tokens: values that are not", 1),
        ({"response_id": [*range(6)], "n_tokens": [2**40, "x", object(), [1], 2.5, 9]},
         [*((i, None) for i in range(5)), (5, 9)], ".n_tokens: values that are not int32", 5),
    ],
)
def test_what_does_not_fit_is_dropped_and_counted(tmp_path, columns, left, reason, count):
    """A value that does not fit costs itself, or its row where the row cannot be without it."""
    with lldscope.Recorder(tmp_path / "r") as r:
        r.responses(step=0, **columns)
        r.responses(step=0, response_id=[7], n_tokens=[1])
        r.step(step=0)
    arrived = [(x["response_id"], x["n_tokens"]) for x in rows(tmp_path / "r", "responses")]
    assert arrived == [*left, (7, 1)]
    assert [n for why, n in r.dropped.items() if reason in why] == [count], r.dropped
    beat = heartbeats.read_heartbeats(tmp_path / "r")[0]
    assert beat["dropped"] == dict(r.dropped)


def test_a_recorder_that_waits_for_its_trainer_is_alive(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "HEARTBEAT_SECONDS", 0.0)

    def last_beat() -> float:
        return heartbeats.read_heartbeats(tmp_path / "r")[0]["time"]

    with lldscope.Recorder(tmp_path / "r"):
        first = last_beat()
        wait_until(lambda: last_beat() > first, 20)


def test_a_step_appears_in_all_tables_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.05)
    path = tmp_path / "r"
    with lldscope.Recorder(path) as r:
        for step in range(20):
            r.actions(step=step, response_id=[0], action_index=[0])
            time.sleep(0.03)  # long enough for the writer to seal half a step
            parts = layout.read_manifest(path).parts
            steps = {t: {p.last_step for p in parts if p.table == t} for t in ("actions", "steps")}
            assert max(steps["actions"], default=-1) == max(steps["steps"], default=-1)
            r.step(step=step)
    assert len(rows(path, "steps")) == len(rows(path, "actions")) == 20


def test_small_parts_are_merged_and_rows_counted_once(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.0)
    monkeypatch.setattr(compaction, "FAN_IN", 4)
    path = tmp_path / "r"
    r = lldscope.Recorder(path)
    for step in range(50):
        r.step(step=step, n_responses=step)
        time.sleep(0.01)
    wait_until(lambda: len(rows(path, "steps")) == 50)
    while_running = [p for p in layout.read_manifest(path).parts if p.table == "steps"]
    assert sorted(x["step"] for x in rows(path, "steps")) == list(range(50))
    assert len(while_running) <= 4 * 3  # fan-in 4: fewer than four parts in each of three tiers
    r.close()
    assert steps_of(path) == list(range(50))
    assert len(list((path / "steps").iterdir())) == 1


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOTDIR, "Check its file system"), (errno.EDQUOT, "within the disk quota"),
     (errno.EROFS, "Mount its file system for writing"), (errno.EACCES, "Make it writable"),
     (errno.EPERM, "Make it writable"), (errno.ENOENT, "Put the directory back")],
)
def test_a_disk_that_refuses_costs_no_row_and_is_logged_once(
    tmp_path, monkeypatch, caplog, number, advice
):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    path = tmp_path / "r"
    with lldscope.Recorder(path) as r:
        with monkeypatch.context() as patch:
            patch.setattr(part, "write_part", refuse)
            for step in range(3):
                r.step(step=step)
                r.flush()
        r.event("checkpoint", step=3)
        r.step(step=3)
    assert steps_of(path) == list(range(4))
    assert r.dropped == {}
    (logged,) = [m for m in caplog.messages if "accepts no rows" in m]
    assert all(words in logged for words in (str(path), "Training goes on", advice))
    assert any("accepts rows again" in m for m in caplog.messages)


@pytest.mark.parametrize(("steps", "plan"), [(300, 300), (300.0, 300), ("many", 7), (-1, 7)])
def test_the_last_plan_that_is_a_number_of_steps_counts(tmp_path, steps, plan):
    with lldscope.Recorder(tmp_path / "run") as r:
        r.plan(7)
        r.plan(steps)
        assert bool(r.dropped) == (plan != steps)
    assert lldscope.open_run(tmp_path / "run").info["planned_steps"] == plan


def test_while_the_disk_refuses_rows_of_the_largest_table_are_dropped_first(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.02)
    monkeypatch.setattr(sealer, "MAX_WAITING_BYTES", 20_000)
    path = tmp_path / "r"
    r = lldscope.Recorder(path)
    (path / "steps").write_text("a file where the folder should be")
    for step in range(10):
        r.responses(step=step, response_id=np.arange(64), text="x" * 200)
        r.step(step=step)
        r.flush()
    (path / "steps").unlink()
    r.close()
    losses = r.dropped["responses: rows lost because the disk refuses them"]
    assert losses > 0
    assert losses + len(rows(path, "responses")) == 640
    assert steps_of(path) == list(range(10))
    assert heartbeats.read_heartbeats(path)[0]["dropped"] == dict(r.dropped)


def test_rows_that_no_disk_took_are_counted_at_the_end(tmp_path):
    path = tmp_path / "r"
    r = lldscope.Recorder(path)
    (path / "steps").write_text("a file where the folder should be")
    r.step(step=0)
    r.close()
    assert r.dropped["steps: rows lost because the disk refuses them"] == 1
    assert heartbeats.read_heartbeats(path)[0]["dropped"] == dict(r.dropped)
    info = layout.read_run(path)
    assert (info["status"], info["reason"]) == (
        "stopped", "unfinished: rows or events were not written",
    )


class Mute(Exception):
    def __str__(self):
        raise RuntimeError


class MuteExit(SystemExit):
    __str__ = Mute.__str__


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (None, "finished", None),
        (KeyboardInterrupt(), "stopped", "interrupted"),
        (ValueError("bad batch"), "failed", "ValueError: bad batch"),
        (Mute(), "failed", "Mute: a Mute without text"),
        (MuteExit(), "finished", None),
        (SystemExit(None), "finished", None),
        (SystemExit(0), "finished", None),
        (SystemExit(143), "stopped", "signal 15"),
        (SystemExit(128), "failed", "SystemExit: 128"),
        (SystemExit(193), "failed", "SystemExit: 193"),
        (SystemExit("no data"), "failed", "SystemExit: no data"),
    ],
)
def test_run_json_states_how_the_run_ended(tmp_path, error, status, reason):
    raised = pytest.raises(type(error)) if error else nullcontext()
    with raised, lldscope.Recorder(tmp_path / "r"):
        if error:
            raise error
    info = layout.read_run(tmp_path / "r")
    assert (info["status"], info["reason"]) == (status, reason)


def test_what_was_flushed_survives_a_kill(tmp_path):
    """The process ends right after the flush, long before a seal was due."""
    path = tmp_path / "r"

    def record() -> None:
        r = lldscope.Recorder(path)
        for step in range(3):
            r.step(step=step, n_responses=4)
        r.updates(step=0, update=0)  # late
        r.evals(step=3, data_source="d", metric="em", value=0.5)
        r.responses(step=3, response_id=[0], group_id=[0])  # of a step that is not complete
        r.flush()
        r.responses(step=3, response_id=[1], group_id=[0])
        os.kill(os.getpid(), signal.SIGKILL)

    assert has_ended(in_child(record, path))
    run = lldscope.open_run(path)
    assert run.signals()["step"].tolist() == [0, 1, 2]
    assert run.damaged == {}
    counts = {t: len(rows(path, t)) for t in ("evals", "updates", "responses")}
    assert counts == {"evals": 1, "updates": 1, "responses": 0}


def test_calls_after_close_are_counted_not_raised(tmp_path):
    r = lldscope.Recorder(tmp_path / "r")
    r.close()
    r.step(step=0)
    r.close("failed")
    assert r.dropped == {"steps: call after close": 1}
    assert layout.read_run(tmp_path / "r")["status"] == "finished"


def test_the_null_recorder_has_every_public_method():
    public = {n for n, _ in inspect.getmembers(lldscope.Recorder) if not n.startswith("_")}
    assert public <= {n for n, _ in inspect.getmembers(lldscope.NullRecorder)}
    with lldscope.NullRecorder() as null:
        for table in TABLES:
            getattr(null, "step" if table == "steps" else table)(step=0)
        null.event("checkpoint", step=0)


def test_a_writer_that_is_always_behind_still_seals(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.05)
    convert = writer.to_arrow

    def slowly(*arguments):
        time.sleep(0.002)
        return convert(*arguments)

    monkeypatch.setattr(writer, "to_arrow", slowly)
    with lldscope.Recorder(tmp_path / "r") as recorder:
        waiting, step, until = recorder._writer.calls, 0, time.monotonic() + 20
        while not layout.read_manifest(recorder.path).parts and time.monotonic() < until:
            while len(waiting) < 20:
                recorder.step(step=step)
                step += 1
        assert time.monotonic() < until
        assert waiting


def test_a_run_whose_attempts_are_invalid_can_be_resumed(make_run):
    path = make_run(steps=range(3))
    file = path / layout.RUN_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | {"attempts": [{"started": "then"}]}))
    with lldscope.Recorder(path, resume=True) as r:
        assert r.attempt == 2
        r.step(step=3)
    info = layout.read_run(path)
    assert [a["attempt"] for a in info["attempts"]] == [2]
    assert info["status"] == "finished"


def test_an_adapters_errors_are_counted_each_and_said_once(tmp_path, caplog):
    with lldscope.Recorder(tmp_path / "r") as r:
        fail_open = FailOpen(r, "mine")
        for _ in range(2):
            with fail_open("a step"), fail_open("its rewards"):
                raise ValueError("no rewards")
            fail_open.missing("the entropy", "it is not computed")
        assert fail_open.take() == fail_open.seconds > 0 == fail_open.take()
    assert r.dropped == {"mine: its rewards: ValueError: no rewards": 2}
    events = [(e["what"], e["failed"]) for e in events_of(tmp_path / "r")]
    assert events == [("its rewards", True), ("the entropy", False)]
    levels = [record.levelname for record in caplog.records if "recorded" in record.message]
    assert levels == ["ERROR", "WARNING"]
