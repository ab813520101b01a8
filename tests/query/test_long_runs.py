"""Long runs: signals computed stretch by stretch, and kept from one opening to the next."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from made_up_runs import write_run, write_step
from recorded_steps import record_steps

import lldscope
from lldscope.query import contents, signal_engine
from lldscope.query import part_index as ranges
from lldscope.query.database import MOST_CHUNKS, Database
from lldscope.query.signal_cache import SignalCache
from lldscope.runs import open_run


def test_signals_are_the_same_however_many_stretches(tmp_path: Path, monkeypatch: Any) -> None:
    path = write_run(tmp_path / "r", 20)
    at_once = open_run(path)
    monkeypatch.setattr(ranges.step_ranges, "__defaults__", (250,))
    assert len(ranges.step_ranges(at_once._contents.parts.parts, 0)) > 3
    cut = open_run(path)
    pd.testing.assert_frame_equal(cut.signals(), at_once.signals())
    pd.testing.assert_frame_equal(cut.action_signals(), at_once.action_signals())
    assert len(cut.sql("SELECT * FROM actions")) == len(at_once.sql("SELECT * FROM actions")) > 0


@pytest.fixture
def computed(monkeypatch: Any) -> list[int]:
    """The first steps from which signals were computed."""
    steps: list[int] = []
    compute = contents.SignalEngine.signals

    def count(self: Any, parts: Any, starts: Any, first: int, *rest: Any) -> Any:
        steps.append(first)
        return compute(self, parts, starts, first, *rest)

    monkeypatch.setattr(contents.SignalEngine, "signals", count)
    monkeypatch.setattr(contents, "CACHE_ROWS", 1)
    return steps


def test_kept_signals_are_not_computed_again_and_new_steps_alone_are_added(
    tmp_path: Path, computed: list[int]
) -> None:
    path, cache = write_run(tmp_path / "r", 12), SignalCache(tmp_path / "cache")
    fresh = open_run(path, cache=cache).signals()
    computed.clear()
    again = open_run(path, cache=cache)
    assert computed == []
    pd.testing.assert_frame_equal(again.signals(), fresh)
    assert again.assess().last_step == 11
    with lldscope.Recorder(path, resume=True) as recorder:
        write_step(recorder, 12, dies=False, at=1e9)
    longer = open_run(path, cache=cache)
    assert computed == [12]
    pd.testing.assert_frame_equal(longer.signals(), open_run(path).signals())


def test_what_is_kept_and_does_not_fit_is_passed_over(tmp_path: Path, computed: list[int]) -> None:
    path, cache = write_run(tmp_path / "r", 10), SignalCache(tmp_path / "cache")
    fresh = open_run(path, cache=cache).signals()
    (folder,) = (tmp_path / "cache").iterdir()
    state = (folder / "state.json").read_text()
    for broken in ("{", json.dumps(json.loads(state) | {"code": "another version"})):
        (folder / "state.json").write_text(broken)
        computed.clear()
        pd.testing.assert_frame_equal(open_run(path, cache=cache).signals(), fresh)
        assert computed == [0]
    (folder / "signals.parquet").write_bytes(b"PAR1 nothing PAR1")
    pd.testing.assert_frame_equal(open_run(path, cache=cache).signals(), fresh)
    shutil.rmtree(path)
    write_run(path, 4)  # another run, of another id
    assert len(open_run(path, cache=cache).signals()) == 4


def test_signals_of_a_damaged_run_are_not_kept(tmp_path: Path, computed: list[int]) -> None:
    path, cache = write_run(tmp_path / "r", 10), SignalCache(tmp_path / "cache")
    file = next((path / "actions").glob("*.parquet"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    assert open_run(path, cache=cache).damaged
    file.write_bytes(whole)
    assert open_run(path, cache=cache).signals()["delta_correct"].notna().any()


def test_signals_of_many_looks_stay_in_their_order(tmp_path: Path) -> None:
    database = Database(tmp_path)
    for step in range(3 * MOST_CHUNKS):
        measured = {"reward": [float(step)]} if step % 2 else {}
        database.put("signals", pa.table({"step": pa.array([step], "int32"), **measured}))
    table = database.rows("signals")
    assert table is not None
    assert table["step"].to_pylist() == [*range(3 * MOST_CHUNKS)]
    assert table["reward"].to_pylist() == [
        step if step % 2 else None for step in range(3 * MOST_CHUNKS)
    ]
    assert table["step"].num_chunks <= MOST_CHUNKS


def test_a_live_run_that_began_with_many_rows_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal_engine, "FEW_ROWS", 500)
    with lldscope.Recorder(tmp_path / "run") as recorder:
        record_steps(recorder, range(20))
        recorder.flush()
        with open_run(tmp_path / "run") as run:
            for step in (20, 21):
                record_steps(recorder, range(step, step + 1))
                recorder.flush()
                run.refresh()
            with open_run(tmp_path / "run") as fresh:
                pd.testing.assert_frame_equal(run.signals(), fresh.signals(), rtol=1e-12)
