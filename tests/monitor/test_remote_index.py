"""The index of runs on an object store: as that of a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from flaky_store import FlakyStore
from recorded_steps import record_steps
from test_run_index import NAMES, read, read_index, recorded
from test_run_index import root as local

import lldscope
from benchmarks import ray_job
from lldscope.core.errors import RunNotFound
from lldscope.query.remote import find_remote
from lldscope.storage.url import Url

# Fixtures: the names of the runs that were opened; the runs in a folder.
assert all((read, local, recorded))
ROOT = Url("flaky://bucket/runs")


@pytest.fixture
def store(local: Path) -> Iterator[FlakyStore]:
    """A store with the runs, copied there as directories."""
    FlakyStore.reset()
    fs = fsspec.filesystem("flaky", skip_instance_cache=True)
    fs.put(str(local), "/bucket/runs", recursive=True)
    yield fs
    FlakyStore.reset()


def test_a_second_list_opens_no_run_and_says_what_the_folder_says(store, local, read):
    before = store.find("/bucket/runs")
    first = read_index(ROOT)
    assert read == NAMES
    assert read_index(ROOT) == first
    assert store.find("/bucket/runs") == before, "nothing is written into the store"
    assert first == read_index(local)
    assert read == [*NAMES, *NAMES], "those of the folder, and none again of the store"


def test_a_job_of_ray_says_what_the_list_says(store):
    batch = {"root": [str(ROOT)] * len(NAMES), "name": NAMES[::-1]}
    judged = ray_job.judge(batch)
    rows = {name: json.loads(row) for name, row in zip(*judged.values(), strict=True)}
    for row in rows.values():
        row.pop("last_row_age_seconds")
    assert rows == dict(read_index(ROOT))


def _more(store: FlakyStore, local: Path) -> None:
    with lldscope.Recorder(local / "b", resume=True) as recorder:
        record_steps(recorder, range(30, 33))
    store.put(str(local / "b"), "/bucket/runs/", recursive=True)


CHANGES = {
    "resumed": _more,
    "empty manifest": lambda store, _: store.pipe("/bucket/runs/b/manifest/a1-r0.jsonl", b""),
    "damaged run.json": lambda store, _: store.pipe("/bucket/runs/b/run.json", b"{"),
    "without run.json": lambda store, _: store.rm("/bucket/runs/b/run.json"),
}


def test_a_run_that_changed_is_read_again(store, local, read):
    before = dict(read_index(ROOT))
    for what, change in CHANGES.items():
        read.clear()
        change(store, local)
        after = dict(read_index(ROOT))
        assert (read, after["a"]) == (["b"], before["a"]), what
        assert after["b"] != before["b"], what
        before = after


def test_one_listing_finds_all_runs(store, monkeypatch):
    read_index(ROOT)
    paths: list[str] = []
    for name in ("ls", "find"):
        original = getattr(FlakyStore, name)

        def counted(self: FlakyStore, path: str, *more: Any, _original=original, **options: Any):
            paths.append(path)
            return _original(self, path, *more, **options)

        monkeypatch.setattr(FlakyStore, name, counted)
    runs = find_remote(ROOT)
    assert [url.name for url in runs] == NAMES
    assert len({*runs.values()}) == len(NAMES)
    below = [path for path in paths if path.strip("/").startswith("bucket/runs/")]
    assert below == [], "no folder is asked for"


def test_a_root_that_is_a_run_or_nothing(store):
    assert [*find_remote(Url("flaky://bucket/runs/a"))] == [Url("flaky://bucket/runs/a")]
    assert [name for name, _ in read_index(Url("flaky://bucket/runs/a"))] == ["a"]
    with pytest.raises(RunNotFound, match="There is nothing at"):
        find_remote(Url("flaky://bucket/nowhere"))
    store.makedirs("/bucket/empty")
    assert find_remote(Url("flaky://bucket/empty")) == {}
    for file in ("a/run.json", "b/heartbeat/r0.json", "c/manifest/a1-r0.jsonl", "d/x.jsonl"):
        store.pipe_file(f"/bucket/parts/{file}", b"{}")
    assert [url.name for url in find_remote(Url("flaky://bucket/parts"))] == ["a", "c"]
