"""Compaction: the maximum number of files, who may merge, and that a merge loses nothing."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest
from crash import has_ended, in_child
from sealed_runs import beat_of_a_killed_one, killed, rewrite, sealed, values

import lldscope
from lldscope.query.contents import Contents
from lldscope.recording import writer
from lldscope.storage import compaction, layout
from lldscope.storage.compaction import compact, due, merge
from lldscope.storage.manifest import manifest_path
from lldscope.storage.part import Owner, Part, PartName, part_name


def example_part(first: int, last: int, size: int = 4000) -> Part:
    name = PartName(Owner(1, 0), first, last)
    return Part("actions", name.file, last - first + 1, size, first, last)


def merged(group: list[Part]) -> Part:
    first, last = group[0].name, group[-1].name
    return example_part(first.first, last.last, sum(p.size for p in group))


@pytest.mark.parametrize("every", [1, 7, 50], ids=lambda n: f"a part every {n} seals")
def test_there_are_at_most_fifteen_parts_of_a_level(every):
    """10,000 seals of a table, planned as the recorder plans them, without files."""
    parts: list[Part] = []
    total = most = 0
    for seal in range(1, 10_001, every):
        parts.append(example_part(seal, seal))
        while group := due(parts):
            total += sum(p.rows for p in group)
            parts[-len(group) :] = [merged(list(group))]
        levels = Counter(compaction._level(p.name.first, p.name.last) for p in parts)
        most = max(most, *levels.values())
    assert most <= 15
    spans = [(p.name.first, p.name.last) for p in parts]
    assert spans == sorted(spans)
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    if every == 1:
        assert sum(p.rows for p in parts) == 10_000
        assert total <= 4 * 10_000  # a row is written once more per level


def test_a_level_has_sixteen_times_the_seals_of_the_one_before():
    spans = [(1, 1), (1, 15), (1, 16), (5, 20), (5, 19), (1, 255), (2, 257), (1, 4096)]
    assert [compaction._level(*span) for span in spans] == [0, 0, 1, 1, 0, 1, 2, 3]


@pytest.mark.parametrize(("most", "n"), [(60, 3), (59, 2), (50, 2), (49, 0), (30, 0), (0, 0)])
def test_the_newest_parts_up_to_a_size_are_several_or_none(most, n):
    parts = [example_part(i, i, size) for i, size in enumerate((10, 20, 30), start=1)]
    assert list(compaction.newest(parts, most)) == parts[3 - n :]


def test_large_parts_are_not_merged():
    assert not due([example_part(i, i, compaction.MAX_BYTES // 10) for i in range(1, 40)])
    assert due([example_part(i, i, 10) for i in range(1, 17)])


@pytest.mark.parametrize(
    ("one", "other", "covers", "overlaps"),
    [
        ("a1-r0-000001-000005", "a1-r0-000002-000005", True, True),
        ("a1-r0-000001-000005", "a1-r0-000005-000009", False, True),
        ("a1-r0-000001-000005", "a1-r0-000006-000009", False, False),
        ("a1-r0-000001-000005", "a1-r0-000001-000005", False, True),
        ("a1-r0-000001-000005-k7", "a1-r0-000001-000005", True, True),
        ("a1-r0-000001-000005", "a1-r0-000001-000005-k7", False, True),
        ("a1-r0-000001-000005", "a1-r1-000002", False, False),
        ("a1-r0-000001-000005", "a2-r0-000002", False, False),
    ],
)
def test_names_say_which_part_is_in_which(one, other, covers, overlaps):
    one, other = part_name(f"{one}.parquet"), part_name(f"{other}.parquet")
    assert (one.covers(other), one.overlaps(other)) == (covers, overlaps)
    assert other.overlaps(one) == overlaps


@pytest.fixture
def ended(tmp_path):
    path = killed(tmp_path / "run", 20)
    beat_of_a_killed_one(path)
    return path


def test_compact_loses_no_row_and_leaves_no_file_behind(ended, lldscope_command):
    before = sorted(values(ended))
    size = sum(p.size for p in layout.read_manifest(ended).parts)
    (ended / "responses/a1-r0-000021.parquet.77.inprogress").write_bytes(b"half")
    done = json.loads(lldscope_command("compact", ended, "--json").stdout)
    assert (done["files_before"], done["files_after"], done["files_removed"]) == (20, 1, 21)
    assert sorted(values(ended)) == before
    (part,) = (ended / "responses").iterdir()
    assert (done["bytes_before"], done["bytes_after"]) == (size, part.stat().st_size)
    whole = part.name, part.stat().st_mtime_ns
    assert part.name == "a1-r0-000001-000020.parquet"
    assert "1 parts" in lldscope_command("compact", ended).stdout  # and again: nothing to do
    assert (part.name, part.stat().st_mtime_ns) == whole
    assert lldscope_command("compact", ended / "nowhere").returncode == 1


@pytest.mark.parametrize("has_signals", [True, False])
def test_rows_that_were_merged_before_they_could_be_read_are_read(ended, has_signals):
    """A reader has read the manifest, the parts are merged, and then it wants to read them."""
    if has_signals:
        sealed(ended, range(1, 21), rows=1, table="steps")
    contents = Contents(ended, {}, None, None)
    manifest = contents.parts.read()
    compact(ended)
    assert contents.ingest(manifest, {})
    assert contents.parts.damaged == {}
    steps = contents.db.connection.sql("SELECT step FROM signals").fetchall()
    assert [step for (step,) in steps] == [*range(1, 21)] * has_signals


def test_what_a_killed_writer_wrote_half_never_counts(ended):
    before = sorted(values(ended))
    manifest = manifest_path(ended, 1, 0)
    with manifest.open("ab") as file:
        file.write(b'{"time": 1.0, "parts": {"resp')
    assert compact(ended)
    assert sorted(values(ended)) == before
    assert lldscope.open_run(ended).damaged == {}


def test_two_compactors_at_once_count_nothing_twice(ended):
    """The second one read the manifest before the first one merged."""
    parts = [p for p in layout.read_manifest(ended).parts if p.table == "responses"]
    before = sorted(values(ended))
    merge(ended, parts[:16])
    merge(ended, parts)  # overlaps what is merged by now
    assert sorted(values(ended)) == before
    merge(ended, parts[4:8])
    assert sorted(values(ended)) == before
    compact(ended)
    assert sorted(values(ended)) == before
    assert lldscope.open_run(ended).damaged == {}


def test_a_recorder_whose_parts_were_merged_by_another_process_continues(tmp_path, monkeypatch):
    """The other one took it for ended. The recorder's own merge is void, and it deletes nothing."""
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
                with monkeypatch.context() as patch:
                    patch.setattr(compaction, "still_writing", lambda *a: None)
                    compact(path)
    assert sorted(values(path)) == [(s, i) for s in range(30) for i in (0, 1)]
    assert lldscope.open_run(path).damaged == {}


def test_parts_of_a_recorder_are_merged_once_its_process_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.0)
    path = tmp_path / "run"

    def record():
        r = lldscope.Recorder(path)
        for step in range(3):
            r.step(step=step)
            r.flush()
        before = sorted(path.rglob("*.parquet"))
        done = compact(path)
        assert "its recorder is running" in done.skipped["manifest/a1-r0.jsonl"]
        assert sorted(path.rglob("*.parquet")) == before

    has_ended(in_child(record, path))
    assert compact(path).files_after == 1


def test_replaced_files_stay_for_readers(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.0)
    monkeypatch.setattr(compaction, "FAN_IN", 4)
    with lldscope.Recorder(tmp_path / "run") as r:
        for step in range(6):
            r.step(step=step)
            r.flush()
        names = {p.name for p in (tmp_path / "run" / "steps").iterdir()}
        assert "a1-r0-000001-000004.parquet" in names
        assert "a1-r0-000001.parquet" in names


def test_a_damaged_part_stays_where_it_is_and_the_others_are_merged(ended):
    part = ended / "responses/a1-r0-000007.parquet"
    content = bytearray(part.read_bytes())
    content[40:60] = b"\xff" * 20
    part.write_bytes(content)
    done = compact(ended)
    assert list(done.skipped) == ["responses/a1-r0-000007.parquet"]
    left = sorted(p.name for p in (ended / "responses").iterdir())
    assert left == [
        "a1-r0-000001-000006.parquet", "a1-r0-000007.parquet", "a1-r0-000008-000020.parquet",
    ]
    assert list(lldscope.open_run(ended).damaged) == ["responses/a1-r0-000007.parquet"]


def test_older_columns_are_merged_with_newer_ones(ended):
    def older(table, rows):
        return rows.drop_columns(["text"]) if rows["step"][0].as_py() % 2 else rows

    rewrite(ended, older)
    before = sorted(values(ended))
    assert compact(ended).files_after == 1
    assert sorted(values(ended)) == before
