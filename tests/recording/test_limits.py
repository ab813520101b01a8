"""What a recorder promises of bad values, of memory, and of an end that comes too soon."""

from __future__ import annotations

import datetime
import fractions
import time
from decimal import Decimal
from enum import Enum

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lldscope
from lldscope.recording import buffers, calls, recorder, writer
from lldscope.recording.attempt import plain_end
from lldscope.storage import heartbeats, layout, part


def test_what_a_slow_disk_did_not_take_is_counted_and_the_run_is_unfinished(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.0)
    write = part.write_part

    def slow(*arguments):
        time.sleep(0.3)
        return write(*arguments)

    monkeypatch.setattr(part, "write_part", slow)
    run = lldscope.Recorder(tmp_path / "r")
    for step in range(3):
        run.responses(step=step, response_id=[0, 1], text="x")
        run.step(step=step)
        run.event("note", step=step)
    run.close()
    run._writer.join()
    with lldscope.open_run(tmp_path / "r") as read:
        assert read.info["status"] == "stopped"
        assert read.info["reason"].startswith("unfinished: ")
    assert any(why.startswith("calls not written") for why in run.dropped)
    assert heartbeats.read_heartbeats(tmp_path / "r")[0]["dropped"] == dict(run.dropped)


def test_the_queue_is_bounded_by_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "QUEUE_BYTES", 1 << 20)
    text, most = "x" * 10_000, 0
    with lldscope.Recorder(tmp_path / "r") as run:
        for step in range(100):
            run.responses(step=step, response_id=list(range(10)), text=[text] * 10)
            most = max(most, run._writer.calls.bytes)
    assert 1 << 18 < most <= 1 << 20
    drops = run.dropped["responses: call while the writer was behind"]
    with lldscope.open_run(tmp_path / "r") as read:
        count = int(read.sql("SELECT count(*) n FROM responses").n[0])
    assert drops
    assert count == 10 * (100 - drops)
    assert run._writer.calls.bytes == 0


@pytest.mark.parametrize(
    "limits",
    [{"OPEN_STEP_SECONDS": 0.2, "SEAL_SECONDS": 0.02}, {"OPEN_STEP_BYTES": 1 << 20,
                                                        "SEAL_BYTES": 1 << 20}],
    ids=["long", "large"],
)
def test_a_step_that_is_long_or_large_is_sealed_in_pieces(tmp_path, monkeypatch, limits):
    for name, value in limits.items():
        monkeypatch.setattr(writer, name, value)
    path = tmp_path / "r"
    with lldscope.Recorder(path) as run:
        for response in range(100):  # each before the time is over, which counts from the first
            run.responses(step=0, response_id=[response], text=["x" * 100_000])
            time.sleep(0.01)
        run.flush()
        parts = [p for p in layout.read_manifest(path).parts if p.table == "responses"]
        assert len(parts) > 1
        run.step(step=0)
    with lldscope.open_run(path) as read:
        assert int(read.sql("SELECT count(*) n FROM responses").n[0]) == 100


def test_the_size_of_a_call_is_that_of_what_it_holds():
    _, size = buffers.copy_columns({"a": np.zeros(1000), "text": ["x" * 1000] * 3000})
    assert 3_000_000 < size < 3_600_000


class Hostile:
    """An object all of whose conversions raise but the one that Hypothesis prints."""

    __repr__ = object.__repr__
    _repr_pretty_ = None

    def __str__(self, *_):
        raise RuntimeError("no text")

    __len__ = __iter__ = __eq__ = __hash__ = __int__ = __float__ = __str__
    __getattr__ = __array__ = __index__ = __bool__ = __sizeof__ = __str__


class Colour(Enum):
    RED = 1


CIRCLE: list = []
CIRCLE.append(CIRCLE)
ODD = [  # by number, because hypothesis prints what it samples from
    Hostile(), Colour.RED, Decimal("NaN"), fractions.Fraction(1, 3), CIRCLE, object(), print,
    datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), np.ma.masked,
    np.ma.array([1, 2], mask=[1, 0]), np.datetime64("NaT"), np.array(3), np.zeros((2, 2)),
    np.array([{}, None], object), np.zeros(2, [("a", "i4")]), np.array(["x", "y"]),
    np.arange(4)[::2], np.float16(1), torch.zeros(2), torch.zeros(2, device="meta"),
    torch.tensor(1, device="meta"), torch.zeros(1, requires_grad=True), range(3), {1, 2}, "\ud800",
    2**80,
]
ATOMS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=5),
    st.binary(max_size=3), st.complex_numbers(), st.integers(0, len(ODD) - 1).map(ODD.__getitem__),
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
TABLE_CALLS = ("step", "updates", "responses", "actions", "tokens", "retention", "evals",
               "eval_questions", "probes", "scalars")
COLUMNS = ("step", "time", "response_id", "text", "n_responses", "reward", "made_up")


def test_nothing_raises_into_training_whatever_it_is_given(tmp_path):
    run = lldscope.Recorder(tmp_path / "r")
    columns = st.dictionaries(st.sampled_from(COLUMNS), VALUES, max_size=4)

    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(TABLE_CALLS), columns, VALUES, VALUES, VALUES)
    def call(table, columns, first, second, third):
        getattr(run, table)(**columns)
        run.event(first, second, detail=third)
        run.alert(rule=first)
        run.plan(second)
        status, reason = plain_end(first, second)
        assert status in ("finished", "failed", "stopped")
        assert reason is None or isinstance(reason, str)

    call()
    for odd in ODD:
        run.responses(step=6, response_id=odd, text=odd)
    run.step(step=7)
    run.flush()
    run.close("stopped", Hostile())
    assert not run._writer.is_alive()
    with lldscope.open_run(tmp_path / "r") as read:
        assert read.damaged == {}
        assert 7 in set(read.sql("SELECT step FROM all_steps").step)
        assert read.info["reason"] == "a Hostile without text"
