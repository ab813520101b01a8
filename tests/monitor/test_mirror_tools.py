"""`watch --mirror` to the real tools: what they wrote is read back."""

from __future__ import annotations

import pytest
from mirrored import expected, send, watch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lldscope.importers.source import Findings
from lldscope.importers.sqlite import Trackio
from lldscope.importers.tensorboard import TensorBoard
from lldscope.importers.wandb_offline import WandbOffline


@pytest.fixture(scope="module")
def watched():
    return watch()


@pytest.fixture
def assessment(watched):
    return watched[0].run.assess()


def told_in(source, paths) -> dict[int, dict[str, float]]:
    values: dict[int, dict[str, float]] = {}
    for row in source.read(paths, Findings()):
        step = int(row.values.pop("lldscope/step", row.step))
        assert not values.get(step, {}).keys() & row.values.keys(), "told twice"
        values.setdefault(step, {}).update(row.values)
    return values


def test_tensorboard_reads_it(tmp_path, watched, assessment):
    for _ in range(2):  # the second time there is nothing new
        send(watched, f"tensorboard:{tmp_path}/tb")
    assert told_in(TensorBoard(), [*(tmp_path / "tb").iterdir()]) == expected(assessment)
    events = EventAccumulator(str(tmp_path / "tb"), {"scalars": 0, "tensors": 0})
    events.Reload()
    phases = {e.step: e.value for e in events.Scalars("lldscope/phase")}
    assert phases == {s: v["lldscope/phase"] for s, v in expected(assessment).items()}
    texts = [e.tensor_proto.string_val[0].decode() for e in events.Tensors("lldscope/alerts")]
    assert any("lld-collapse" in text for text in texts)
    (legend, *_) = events.Tensors("lldscope/legend")
    assert b"4 collapse" in legend.tensor_proto.string_val[0]


def test_wandb_takes_it_offline(tmp_path, watched, assessment, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    send(watched, "wandb:mine/abc123")
    (file,) = tmp_path.glob("wandb/offline-run-*/run-abc123.wandb")
    assert told_in(WandbOffline(), [file]) == expected(assessment)
    assert b"lld-collapse in run" in file.read_bytes()  # the alert


def test_trackio_takes_it(tmp_path, watched, assessment, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    for _ in range(2):
        send(watched, "trackio:mine")
    assert told_in(Trackio(), [tmp_path / "mine.db"]) == expected(assessment)
