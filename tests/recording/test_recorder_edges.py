"""Edge cases of the recorder: unusual details, rows outside steps, exits, a damaged run.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from recorded_steps import wait_until

import lldscope
from lldscope.recording import writer
from lldscope.recording.recorder import FailOpen
from lldscope.storage import heartbeats, json_files, layout


def steps_of(path: Path, table: str = "steps") -> list[int]:
    """The steps of all rows that the manifest lists, read without lldscope's own reader."""
    parts = [p for p in layout.read_manifest(path).parts if p.table == table]
    return [step for p in parts for step in pq.read_table(p.path(path))["step"].to_pylist()]


def events_of(path: Path) -> list[dict[str, Any]]:
    return json_files.read_lines(path / layout.EVENTS_FILE)[0]


class Unconvertible:
    """Like some tensors: every conversion raises."""

    def _refuse(self, *arguments: object) -> Any:
        raise RuntimeError("not now")

    item = tolist = __str__ = __repr__ = _refuse


def circle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"in": value}
    return value


DETAILS = {
    "unconvertible": Unconvertible,
    "circle": circle,
    "deep": lambda: nested(100_000),
    "long": lambda: 10**5000,
}


@pytest.mark.parametrize("detail", DETAILS)
def test_a_detail_that_cannot_become_json_costs_only_its_line(tmp_path, detail):
    with lldscope.Recorder(tmp_path / "r") as r:
        r.step(step=0)
        r.event("lr_change", step=0, values=DETAILS[detail]())
        r.flush()
        for step in range(1, 6):
            r.step(step=step)
        r.event("checkpoint", step=5)
    assert steps_of(tmp_path / "r") == list(range(6))
    assert [e["kind"] for e in events_of(tmp_path / "r")] == ["checkpoint"]
    ((reason, count),) = r.dropped.items()
    assert reason.startswith("events.jsonl: a line that cannot become JSON")
    assert count == 1
    assert heartbeats.read_heartbeats(tmp_path / "r")[0]["dropped"] == dict(r.dropped)


def test_an_evaluation_is_sealed_before_the_next_step(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.05)
    path = tmp_path / "r"
    with lldscope.Recorder(path) as r:
        r.step(step=0)
        r.responses(step=1, response_id=[0])
        r.evals(step=1, data_source="d", metric="em", value=0.5)
        wait_until(lambda: steps_of(path, "evals") == [1])
        assert steps_of(path, "responses") == []  # the step under way


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
