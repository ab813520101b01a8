"""What a recorder accepts, every reader takes: odd values cost themselves or their row and are
counted, losses are told in the run, and a step is never shown before it is complete."""

from __future__ import annotations

import logging
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lldscope
from lldscope.core.errors import UsageError
from lldscope.recording import calls, recorder, writer
from lldscope.storage import heartbeats, json_files, layout


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with lldscope.open_run(path) as run:
        assert run.damaged == {}
        return run.rows(sql).rows


class Unconvertible:
    """Like some tensors: every conversion raises."""

    def _refuse(self, *arguments: object) -> Any:
        raise RuntimeError("not now")

    item = tolist = __str__ = __repr__ = _refuse


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"in": value}
    return value


CIRCLE: dict[str, Any] = {}
CIRCLE["self"] = CIRCLE
EVENTS: list[tuple[dict[str, Any], int | str | None]] = [
    ({"step": 5.0}, 5),
    ({"step": np.int64(5)}, 5),
    ({"step": np.float32(5)}, 5),
    ({"step": np.array(5)}, 5),
    ({"step": None}, None),
    ({"step": -1}, "refused"),
    ({"step": 5.5}, "refused"),
    ({"step": 2**31}, "refused"),
    ({"step": "5"}, "refused"),
    ({"step": float("nan")}, "refused"),
    ({"step": float("inf")}, "refused"),
    ({"kind": None}, "refused"),
    ({"kind": 3}, "refused"),
    ({"attempt": "two", "rank": -3}, None),
    ({"n": 7, "crc": 3}, None),
    *(({"values": odd}, "refused") for odd in (Unconvertible(), CIRCLE, nested(100_000), 10**5000)),
]


def test_an_event_is_one_for_every_reader_or_is_refused_and_counted(tmp_path):
    with lldscope.Recorder(tmp_path / "r") as r:
        r.step(step=0)
        for number, (value, _) in enumerate(EVENTS):
            r.event(**({"kind": "lr_change", "number": number} | value))
        r.event("checkpoint", step=0, loss=float("nan"))
        r.alert(rule="lld-decay", step=4)
    with lldscope.open_run(tmp_path / "r") as run:
        assert run.damaged == {}
        *changes, last = run.events()
    expected = {n: step for n, (_, step) in enumerate(EVENTS) if step != "refused"}
    assert {e["number"]: e["step"] for e in changes} == expected
    assert {(e["attempt"], e["rank"]) for e in changes} == {(1, 0)}
    assert (last["kind"], last["loss"]) == ("checkpoint", "NaN")
    (alert,), _ = json_files.read_lines(tmp_path / "r" / layout.ALERTS_FILE)
    assert alert["rule"] == "lld-decay"
    assert sum(r.dropped.values()) == len(EVENTS) - len(expected)


def test_losses_while_the_writer_is_behind_are_logged_and_counted(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(calls, "QUEUE_CALLS", 0)
    with caplog.at_level(logging.WARNING), lldscope.Recorder(tmp_path / "r") as r:
        for step in range(50):
            r.step(step=step)
        monkeypatch.setattr(calls, "QUEUE_CALLS", 4096)
        r.step(step=50)
    assert caplog.text.count("the writer was behind") == 1
    losses = heartbeats.read_heartbeats(tmp_path / "r")[0]["dropped"]
    assert losses == {"steps: call while the writer was behind": 50}


def test_rows_given_ahead_wait_for_their_own_step(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.01)
    path = tmp_path / "r"
    with lldscope.Recorder(path) as r:
        for step in range(2):  # the next step's rollouts are there before this one's update
            r.responses(step=step + 1, response_id=[0, 1])
            r.actions(step=[step, step + 1], response_id=0, action_index=0)
            r.step(step=step)
            r.flush()
            with lldscope.open_run(path) as run:
                ends = [run.rows(f"SELECT coalesce(max(step), 0) FROM {t}").rows[0][0]
                        for t in ("steps", "responses", "actions")]
            assert ends[0] == step
            assert max(ends) == step
    assert rows(path, "SELECT count(*) FROM responses") == [(4,)]
    assert rows(path, "SELECT count(*) FROM actions") == [(4,)]


def _child(recorder: lldscope.Recorder, queue: Any) -> None:
    began = time.monotonic()
    recorder.step(step=99)
    recorder.event("checkpoint", step=99)
    recorder.flush()
    recorder.close()
    queue.put((time.monotonic() - began, dict(recorder.dropped)))


def test_a_forked_child_says_so_and_waits_for_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with lldscope.Recorder(tmp_path / "r") as r:
        r.step(step=0)
        child = context.Process(target=_child, args=(r, queue))
        child.start()
        seconds, drops = queue.get(timeout=60)
        child.join()
        r.step(step=1)
    assert seconds < recorder.FLUSH_SECONDS
    assert len(drops) == 3
    assert all("forked child" in reason for reason in drops)
    assert rows(tmp_path / "r", "SELECT step FROM steps ORDER BY 1") == [(0,), (1,)]


@pytest.mark.parametrize(
    "wrong",
    [{"rank": -1}, {"rank": "0"}, {"rank": 1.5}, {"rank": 2**31}, {"world_size": 0},
     {"attempt": 0}, {"name": ["x"]}, {"group": {"a": 1}}, {"correct_rule": object()}],
)
def test_what_no_reader_would_take_is_refused_before_anything_is_created(tmp_path, wrong):
    with pytest.raises(UsageError):
        lldscope.Recorder(tmp_path / "r", **wrong)
    assert not (tmp_path / "r").exists()
