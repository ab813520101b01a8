"""Compaction: how many files there are at most, who may merge, and what a merge never loses."""

from __future__ import annotations

import json
import os
import time
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import record_steps, wait_until
from sealed_runs import sealed, values

import lldscope
from lldscope.recording import writer
from lldscope.storage import compaction, layout
from lldscope.storage.compaction import compact, due
from lldscope.storage.manifest import manifest_path
from lldscope.storage.merge import merge
from lldscope.storage.part import Part, PartName


def made_up(first: int, last: int, size: int = 4000) -> Part:
    name = PartName(1, 0, first, last)
    return Part("actions", name.file, 1, 0, last - first + 1, size, first, last)


def merged(group: list[Part]) -> Part:
    first, last = group[0].name, group[-1].name
    return made_up(first.first, last.last, sum(p.size for p in group))


@pytest.mark.parametrize("every", [1, 7, 50], ids=lambda n: f"a part every {n} seals")
def test_there_are_at_most_fifteen_parts_of_a_level(every):
    """10,000 seals of a table, planned as the recorder does it, without any file."""
    parts: list[Part] = []
    written = most = 0
    for seal in range(1, 10_001, every):
        parts.append(made_up(seal, seal))
        while group := due(parts):
            written += sum(p.rows for p in group)
            parts[-len(group) :] = [merged(list(group))]
        most = max(most, len(parts))
    assert most <= 15 * 4
    spans = [(p.name.first, p.name.last) for p in parts]
    assert spans == sorted(spans)
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    if every == 1:
        assert sum(p.rows for p in parts) == 10_000
        assert written <= 4 * 10_000  # a row is written once more per level


def test_large_parts_are_left_alone():
    assert not due([made_up(i, i, compaction.MAX_BYTES // 10) for i in range(1, 40)])
    assert due([made_up(i, i, 10) for i in range(1, 17)])


@pytest.fixture
def dead(tmp_path):
    """A run of 20 seals whose recorder is gone."""
    path = tmp_path / "run"
    lldscope.Recorder(path).close()
    manifest = manifest_path(path, 1, 0)
    manifest.write_bytes(b"")
    (path / "heartbeat/r0.json").unlink()
    sealed(path, range(1, 21))
    old = time.time() - 2 * compaction.SILENT_SECONDS
    os.utime(manifest, (old, old))
    return path


def test_compact_keeps_every_row_and_leaves_no_file_behind(dead):
    before = sorted(values(dead))
    (dead / "responses/a1-r0-000021.parquet.77.inprogress").write_bytes(b"half")
    done = compact(dead)
    assert (done.files_before, done.files_after) == (20, 1)
    assert sorted(values(dead)) == before
    assert [p.name for p in (dead / "responses").iterdir()] == ["a1-r0-000001-000020.parquet"]
    assert done.files_removed == 21
    assert compact(dead).files_after == 1  # and again: nothing to do
    assert sorted(values(dead)) == before


def test_two_compactors_at_once_count_nothing_twice(dead):
    """The second one has read the manifest before the first one merged."""
    seen = [p for p in layout.read_manifest(dead).parts if p.table == "responses"]
    before = sorted(values(dead))
    assert merge(dead, seen[:16]) is not None
    merge(dead, seen)  # overlaps what is merged by now
    assert sorted(values(dead)) == before
    merge(dead, seen[4:8])
    assert sorted(values(dead)) == before
    compact(dead)
    assert sorted(values(dead)) == before
    assert lldscope.open_run(dead).damaged == {}


def test_a_recorder_whose_parts_were_merged_by_another_goes_on(tmp_path, monkeypatch):
    """Somebody took it for dead. It sees that its own merge came too late, and deletes nothing."""
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.0)
    monkeypatch.setattr(writer, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(compaction, "FAN_IN", 4)
    path = tmp_path / "run"
    with lldscope.Recorder(path) as r:
        for step in range(30):
            r.responses(step=step, response_id=[0, 1])
            r.step(step=step)
            r.flush()
            if step in (6, 13):
                monkeypatch.setattr(compaction, "still_writing", lambda *a: None)
                compact(path)
                monkeypatch.undo()
                monkeypatch.setattr(writer, "SEAL_SECONDS", 0.0)
                monkeypatch.setattr(compaction, "FAN_IN", 4)
    assert sorted(values(path)) == [(s, i) for s in range(30) for i in (0, 1)]
    assert lldscope.open_run(path).damaged == {}


def test_what_a_living_recorder_writes_is_left_alone(tmp_path):
    path = tmp_path / "run"
    with lldscope.Recorder(path) as r:
        r.step(step=0)
        r.flush()
        before = sorted(path.rglob("*.parquet"))
        done = compact(path)
        assert "its recorder is running" in done.skipped["a1-r0.jsonl"]
        assert sorted(path.rglob("*.parquet")) == before


def test_a_damaged_part_stays_where_it_is_and_the_others_are_merged(dead):
    part = dead / "responses/a1-r0-000007.parquet"
    content = bytearray(part.read_bytes())
    content[40:60] = b"\xff" * 20
    part.write_bytes(content)
    done = compact(dead)
    assert list(done.skipped) == ["responses/a1-r0-000007.parquet"]
    left = sorted(p.name for p in (dead / "responses").iterdir())
    assert left == [
        "a1-r0-000001-000006.parquet", "a1-r0-000007.parquet", "a1-r0-000008-000020.parquet",
    ]  # fmt: skip
    assert list(lldscope.open_run(dead).damaged) == ["responses/a1-r0-000007.parquet"]


def test_the_next_attempt_tidies_up_after_the_one_that_was_killed(dead, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.02)
    before = sorted(values(dead))
    with lldscope.Recorder(dead, resume=True) as r:
        r.step(step=30)
        wait_until(lambda: len(list((dead / "responses").iterdir())) == 1)
    assert sorted(values(dead)) == before


def test_older_columns_are_merged_with_newer_ones(dead):
    first = layout.read_manifest(dead).parts[0]
    old = pq.read_table(first.path(dead), partitioning=None).drop_columns(["text"])
    pq.write_table(old, first.path(dead))
    size = first.path(dead).stat().st_size
    manifest = manifest_path(dead, 1, 0)
    head, *rest = manifest.read_text().splitlines()
    line = json.loads(head)
    line["parts"]["responses"] |= {"bytes": size}
    del line["parts"]["responses"]["crc"], line["crc"]
    manifest.write_text("\n".join([json.dumps(line), *rest]) + "\n")
    before = sorted(values(dead))
    compact(dead)
    assert sorted(values(dead)) == before


def test_retention_deletes_token_rows_and_nothing_else(tmp_path):
    path = tmp_path / "run"
    with lldscope.Recorder(path) as r:
        for step in range(50):
            record_steps(r, range(step, step + 1))
            r.tokens(step=step, response_id=0, position=np.arange(4), token_id=1, text="t")
            r.step(step=step)
    before = {t: len(values(path, t)) for t in ("responses", "actions")}
    done = compact(path, keep_token_steps=10)
    assert done.rows_removed == 40 * 4
    assert sorted({s for s, _ in values(path, "tokens")}) == list(range(40, 50))
    assert {t: len(values(path, t)) for t in before} == before
    assert compact(path, keep_token_steps=10).rows_removed == 0
    assert lldscope.open_run(path).damaged == {}


def test_the_command_says_what_it_did(dead, lldscope_command):
    done = lldscope_command("compact", dead, "--json")
    told = json.loads(done.stdout)
    assert (told["files_before"], told["files_after"]) == (20, 1)
    assert done.returncode == 0
    assert "1 parts" in lldscope_command("compact", dead).stdout
    assert lldscope_command("compact", dead / "nowhere").returncode == 1
    assert lldscope_command("compact", dead, "--keep-tokens", "0").returncode == 2
