"""Repair and compaction together: at the same time, after damage, in copies of a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import fsspec
import pandas as pd
import pytest
from recorded_steps import record_steps
from sealed_runs import killed, silence, values

import lldscope
from lldscope.doctor import checks as doctor
from lldscope.doctor.checks import examine, repair
from lldscope.query import contents
from lldscope.query.signal_cache import SignalCache
from lldscope.recording import writer
from lldscope.runs import open_run
from lldscope.storage import compaction, layout, manifest
from lldscope.storage.compaction import compact, merge
from lldscope.storage.manifest import manifest_path
from lldscope.storage.objects import ObjectStore

MERGED = "responses/a1-r0-000001-000008.parquet"


@pytest.fixture
def run(tmp_path):
    return killed(tmp_path / "run", 8)


def damage_lines(path: Path, numbers: range, new: bytes) -> bytes:
    """Overwrite the middle of some lines; returns the content of the manifest."""
    file = manifest_path(path, 1, 0)
    lines = file.read_bytes().splitlines()
    for n in numbers:
        lines[n] = lines[n][:30] + new + lines[n][30 + len(new) :]
    file.write_bytes(b"\n".join(lines) + b"\n")
    silence(path)
    return file.read_bytes()


# -- the doctor beside a compaction ---------------------------------------------------------------


def test_a_merged_part_that_was_listed_after_the_examination_is_not_removed(run, monkeypatch):
    before, commits = sorted(values(run)), []
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "commit", lambda *a, **k: commits.append((a, k)))
        merge(run, layout.read_manifest(run).parts)
    result = examine(run)
    assert [(f.where, f.repair) for f in result.findings if f.what == "leftover"] == [
        (MERGED, "remove it")
    ]
    ((arguments, options),) = commits
    manifest.commit(*arguments, **options)  # the compaction goes on
    silence(run)
    repair(result)
    compact(run)
    assert sorted(values(run)) == before


def test_unlisted_files_are_classified_by_the_manifest_as_it_is_after_the_parts_were_read(
    run, monkeypatch
):
    before, check_parts = sorted(values(run)), doctor.check_parts

    def slowly(examination):
        yield from check_parts(examination)
        merge(run, examination.manifest.parts)

    monkeypatch.setattr(doctor, "check_parts", slowly)
    result = examine(run)
    monkeypatch.undo()
    assert MERGED not in [f.where for f in result.findings]
    repair(result)
    assert sorted(values(run)) == before


def test_what_was_merged_stays_while_the_merged_part_is_missing(run):
    merge(run, layout.read_manifest(run).parts)
    (run / MERGED).unlink()
    silence(run)
    repair(examine(run))
    silence(run)
    compact(run)
    assert len(list((run / "responses").glob("*.parquet"))) == 8


# -- manifests that are damaged -------------------------------------------------------------------


def test_parts_whose_manifest_line_is_damaged_are_not_lost_by_a_compaction(run):
    before = sorted(values(run))
    damage_lines(run, range(3, 4), b"#")
    assert len(values(run)) < len(before)
    done = compact(run)
    assert "run lldscope doctor --repair first" in done.skipped["manifest/a1-r0.jsonl"]
    assert done.files_removed == 0
    repair(examine(run))
    assert sorted(values(run)) == before
    silence(run)
    assert compact(run).files_after == 1
    assert sorted(values(run)) == before


def test_a_part_under_the_name_of_another_is_not_listed_again(run):
    damage_lines(run, range(3, 4), b"#")
    shutil.copy(run / "responses/a1-r0-000003.parquet", run / "responses/a1-r0-000004.parquet")
    repair(examine(run))
    assert len(values(run)) == len({*values(run)})
    assert (run / "quarantine/responses-a1-r0-000004.parquet").exists()


def test_rows_that_a_merge_did_not_include_go_into_quarantine(run):
    damage_lines(run, range(3, 4), b"#")
    merge(run, layout.read_manifest(run).parts)
    silence(run)
    repair(examine(run))
    silence(run)
    compact(run)
    assert (run / "quarantine/responses-a1-r0-000004.parquet").exists()


@pytest.mark.parametrize("new", [b"\xff\xfe", b"##"], ids=["not UTF-8", "not JSON"])
def test_any_number_of_bad_lines_is_repaired_at_once(tmp_path, new):
    path = killed(tmp_path / "run", 30)
    beat = {"time": 1.7e9, "closed": False, "attempt": 1, "lines": {"a1-r0.jsonl": 40}}
    (path / "heartbeat/r0.json").write_text(json.dumps(beat))
    before = sorted(values(path))
    original = damage_lines(path, range(2, 27), new)
    result = repair(examine(path))
    assert "damage" not in {f.severity for f in result.findings if not f.repaired}
    assert sorted(values(path)) == before
    assert lldscope.open_run(path).damaged == {}
    assert (path / "quarantine/manifest-a1-r0.jsonl").read_bytes() == original
    second = damage_lines(path, range(1), new)
    repair(examine(path))
    assert (path / "quarantine/manifest-a1-r0.jsonl").read_bytes() == original
    assert (path / "quarantine/manifest-a1-r0.2.jsonl").read_bytes() == second
    assert sorted(values(path)) == before


# -- copies of a run ------------------------------------------------------------------------------


@pytest.mark.parametrize("merging", [False, True])
def test_cached_signals_of_a_run_are_not_shown_for_its_copy(tmp_path, monkeypatch, merging):
    monkeypatch.setattr(contents, "CACHE_ROWS", 1)
    monkeypatch.setattr(writer, "SEAL_SECONDS", 3600.0)  # `flush` alone seals
    a, b = tmp_path / "a", tmp_path / "b"
    with lldscope.Recorder(a) as recorder:
        record_steps(recorder, range(3))
    shutil.copytree(a, b)
    monkeypatch.setattr(writer, "CLOSE_MERGE_BYTES", 0)
    for seed, path in enumerate((a, b), 1):
        with lldscope.Recorder(path, resume=True) as recorder:
            for step in (3, 4):
                record_steps(recorder, range(step, step + 1), seed=seed)
                recorder.flush()
    cache = SignalCache(tmp_path / "cache")
    ours = open_run(a, cache=cache).signals()
    if merging:
        compact(b)
    theirs = open_run(b).signals()
    assert not theirs["reward"].equals(ours["reward"])
    pd.testing.assert_frame_equal(open_run(b, cache=cache).signals(), theirs)
    pd.testing.assert_frame_equal(open_run(a, cache=cache).signals(), ours)


def test_nothing_is_cached_of_runs_without_an_id(tmp_path, make_run, monkeypatch):
    monkeypatch.setattr(contents, "CACHE_ROWS", 1)
    path = make_run(steps=range(2))
    (path / "run.json").unlink()
    open_run(path, cache=SignalCache(tmp_path / "cache")).close()
    assert not (tmp_path / "cache").exists()


# -- remote runs ----------------------------------------------------------------------------------


def test_a_small_file_that_could_not_be_fetched_is_fetched_at_the_next_refresh(
    make_run, monkeypatch
):
    fs = fsspec.filesystem("memory")
    fs.put(str(make_run(steps=range(2))), "/edges/r", recursive=True)
    with lldscope.open_run("memory://edges/r") as run:
        info = json.loads(fs.cat("/edges/r/run.json")) | {"name": "again"}
        fs.pipe("/edges/r/run.json", json.dumps(info).encode())
        with monkeypatch.context() as patch:
            patch.setattr(ObjectStore, "read", lambda *arguments: {})  # gone since it was listed
            run.refresh()
        assert run.name == "r"
        run.refresh()
        assert run.name == "again"
    fs.rm("/edges", recursive=True)


def test_a_lost_manifest_is_rebuilt_without_counting_what_was_merged_twice(run):
    before = sorted(values(run))
    merge(run, layout.read_manifest(run).parts)  # the merged files are not removed yet
    manifest_path(run, 1, 0).unlink()
    repair(examine(run))
    assert sorted(values(run)) == before
    assert not [f for f in examine(run).findings if f.what == "unlisted"]
