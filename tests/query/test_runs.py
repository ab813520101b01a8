"""Reading runs: attempts, damage, safety, keeping up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from recorded_steps import record_steps

import lldscope
from lldscope.core.errors import LldscopeError, NewerSchema, RunNotFound, UsageError
from lldscope.doctor import checks as doctor
from lldscope.monitor.health import check
from lldscope.recording import merging, writer
from lldscope.runs import find_runs
from lldscope.storage import compaction, layout
from lldscope.storage.manifest import manifest_path


def test_a_resumed_run_shows_the_last_attempt(tmp_path):
    path = tmp_path / "r"
    with lldscope.Recorder(path) as r:
        for step in range(10):
            r.step(step=step, n_responses=1, reward_sum=1.0)
    with lldscope.Recorder(path, resume=True) as r:
        for step in range(6, 8):
            r.step(step=step, n_responses=1, reward_sum=2.0)
    run = lldscope.open_run(path)
    signals = run.signals()
    # steps 8 and 9 of the first attempt belong to a history that was given up at step 6
    assert signals["step"].tolist() == list(range(8))
    assert signals["reward"].tolist() == [1.0] * 6 + [2.0] * 2
    assert run.sql("SELECT count(*) n FROM all_steps")["n"][0] == 12


def test_a_step_begun_again_is_not_mixed_with_what_it_was(tmp_path):
    path = tmp_path / "r"
    with lldscope.Recorder(path) as r:
        for step in range(4):
            r.responses(step=step, response_id=[0, 1], n_tokens=10)
            r.step(step=step)
    with lldscope.Recorder(path, resume=True) as r:
        r.responses(step=2, response_id=[0, 1], n_tokens=90)  # and there it fails
    run = lldscope.open_run(path)
    assert run.signals()["response_tokens"].tolist() == [10, 10]
    assert run.sql("SELECT DISTINCT n_tokens FROM responses WHERE step = 2")["n_tokens"][0] == 90
    assert run.sql("SELECT count(*) n FROM all_responses")["n"][0] == 10


@pytest.mark.slow
def test_a_live_run_is_followed_and_equals_a_fresh_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_SECONDS", 0.0)
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    monkeypatch.setattr(writer, "GRACE_SECONDS", 0.0)
    path = tmp_path / "r"
    recorder = lldscope.Recorder(path)
    run = lldscope.open_run(path)
    assert len(run.signals()) == 0
    for step in range(40):
        record_steps(recorder, range(step, step + 1))
        if step % 3 == 0:
            run.refresh()
            signals = run.signals()
            actual = run.sql("FROM signals")[list(signals)].astype(signals.dtypes)
            pd.testing.assert_frame_equal(signals, actual)
    recorder.close()
    assert run.refresh()
    fresh = lldscope.open_run(path).signals()
    assert len(fresh) == 40
    pd.testing.assert_frame_equal(run.signals(), fresh)
    assert not run.refresh()


def test_another_run_in_the_same_place_is_read_anew(tmp_path):
    path = tmp_path / "r"
    with lldscope.Recorder(path) as recorder:
        record_steps(recorder, range(20), seed=1)
    run = lldscope.open_run(path)
    assert len(run.signals()) == 20
    shutil.rmtree(path)
    with lldscope.Recorder(path) as recorder:
        record_steps(recorder, range(5), seed=2)
    assert run.refresh()
    pd.testing.assert_frame_equal(run.signals(), lldscope.open_run(path).signals())
    assert len(run.signals()) == 5


def _first_part(path: Path, table: str) -> Path:
    return next(p for p in layout.read_manifest(path).parts if p.table == table).path(path)


@pytest.fixture
def in_parts(tmp_path, monkeypatch):
    """A run whose steps lie in several parts."""
    monkeypatch.setattr(compaction, "FAN_IN", 1000)
    monkeypatch.setattr(merging.Merger, "_merge", lambda *a: False)
    path = tmp_path / "r"
    for start in range(0, 30, 10):
        with lldscope.Recorder(path, resume=start > 0) as recorder:
            record_steps(recorder, range(start, start + 10))
    return path


@pytest.mark.parametrize("harm", ["truncate", "zero", "delete", "garbage inside"])
def test_a_damaged_part_is_named_and_the_rest_is_read(in_parts, harm):
    part = _first_part(in_parts, "actions")
    content = part.read_bytes()
    if harm == "delete":
        part.unlink()
    elif harm == "truncate":
        part.write_bytes(content[: len(content) // 2])
    elif harm == "zero":
        part.write_bytes(b"\0" * len(content))
    else:
        part.write_bytes(content[:8] + b"\xff" * (len(content) - 12) + content[-4:])
    run = lldscope.open_run(in_parts)
    signals = run.signals()
    assert list(run.damaged) == [f"actions/{part.name}"]
    assert len(signals) == 30
    assert signals["correct_logp"].isna().tolist() == [True] * 10 + [False] * 20


def test_a_torn_manifest_tail_is_no_damage_and_a_torn_middle_is(in_parts):
    manifest = manifest_path(in_parts, 1, 0)
    whole = manifest.read_bytes()
    manifest.write_bytes(whole + b'{"time": 1, "parts": {"st')
    run = lldscope.open_run(in_parts)
    assert (len(run.signals()), run.damaged) == (30, {})
    manifest.write_bytes(b"not json\n" + whole)
    run = lldscope.open_run(in_parts)
    assert len(run.signals()) == 30
    assert list(run.damaged) == ["manifest/a1-r0.jsonl line 1"]


def test_empty_lines_in_place_of_a_manifest_are_damage_and_named_in_few_words(in_parts):
    """They were counted as lines that are there, so that the lost ones were not missed."""
    manifest_path(in_parts, 1, 0).write_bytes(b"\n" * 1000)
    damaged = lldscope.open_run(in_parts).damaged
    assert len(damaged) == 21
    assert damaged["manifest/a1-r0.jsonl line 1"].startswith("it is not JSON")
    assert damaged["manifest/a1-r0.jsonl other lines"] == "980 more cannot be read"


@pytest.mark.parametrize("odd", [{"kind": []}, {"step": 3}, {"kind": "resume", "attempt": [[]]}])
def test_events_that_are_none_are_left_out_and_named(make_run, odd):
    path = make_run(steps=range(3))
    sound = {"kind": "lr_change", "step": 1}
    (path / "events.jsonl").write_text(f"{json.dumps(odd)}\n{json.dumps(sound)}\n")
    with lldscope.open_run(path) as run:
        assert run.events() == [sound]
        assert "events.jsonl" in run.damaged
        assert run.assess().last_step == 2


def test_a_manifest_cannot_point_outside_the_run(in_parts, tmp_path):
    secret = tmp_path / "secret.parquet"
    secret.write_bytes(_first_part(in_parts, "steps").read_bytes())
    line = {"parts": {"steps": {"file": "../../secret.parquet", "rows": 1, "bytes": 1,
                                "steps": [0, 1]}}}
    manifest = manifest_path(in_parts, 1, 0)
    manifest.write_text(json.dumps(line) + "\n" + manifest.read_text())
    run = lldscope.open_run(in_parts)
    assert len(run.signals()) == 30
    assert run.damaged


def test_files_that_no_manifest_lists_do_not_count(make_run):
    path = make_run(steps=range(5))
    part = _first_part(path, "steps")
    (part.parent / "a1-r0-999999.parquet").write_bytes(part.read_bytes())
    (part.parent / "a1-r0-999998.parquet.inprogress").write_bytes(b"half")
    assert len(lldscope.open_run(path).signals()) == 5


@pytest.mark.parametrize(
    "query",
    [
        "DROP VIEW steps",
        "SELECT 1; SELECT 2",
        "COPY (SELECT 1) TO 'x.csv'",
        "ATTACH 'x.db'",
        "SET threads=1",
        "INSERT INTO stored_signals_rows SELECT * FROM stored_signals_rows",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/proc/self/environ')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM nowhere",
        "SELEC 1",
        "",
    ],
)
def test_query_reads_the_run_and_nothing_else(make_run, query):
    path = make_run(steps=range(3))
    run = lldscope.open_run(path)
    before = sorted(path.rglob("*"))
    with pytest.raises(UsageError):
        run.sql(query)
    assert sorted(path.rglob("*")) == before
    assert len(run.sql("SELECT * FROM signals")) == 3


def test_a_path_that_is_no_run_says_what_it_is(tmp_path, make_run):
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "model.bin").write_text("")
    (tmp_path / "file").write_text("")
    make_run("runs/a", steps=range(1))
    for name, words in {
        "missing": "does not exist",
        "empty": "is empty",
        "foreign": "not a run that lldscope recorded",
        "file": "is a file",
        "runs": "Name one of: a",
    }.items():
        with pytest.raises(RunNotFound, match=words):
            lldscope.open_run(tmp_path / name)


def test_run_json_of_another_kind(tmp_path):
    for text, error, words in (
        ('{"schema": 2}', NewerSchema, "Upgrade lldscope"),
        ('{"a": 1}', LldscopeError, "not a run.json of lldscope"),
        ("[1, 2", LldscopeError, "cannot be read"),
        ("[]", LldscopeError, "not a run.json of lldscope"),
    ):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(error, match=words):
            lldscope.open_run(tmp_path)


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"a": 1}'])
def test_a_run_that_lost_its_run_json_opens_and_says_so(make_run, tmp_path, content):
    """A kill before it was written, a power cut, a stray rm: the rows are all there."""
    path = make_run("runs/lost", steps=range(40))
    whole = check(lldscope.open_run(path))
    (path / "run.json").unlink()
    if content is not None:
        (path / "run.json").write_text(content)
    (tmp_path / "runs" / "other" / "manifest").mkdir(parents=True)
    (tmp_path / "runs" / "other" / "manifest" / "notes.txt").touch()
    assert find_runs(tmp_path / "runs") == find_runs(path) == [path]
    run = lldscope.open_run(path)
    assert list(run.damaged) == ["run.json"]
    assert "`lldscope doctor --repair` writes a new one" in run.damaged["run.json"]
    state = check(run)
    assert (state.run, state.life) == ("lost", "stopped")
    if content is None:  # those who must know what the run is are told what to do
        with pytest.raises(RunNotFound, match="doctor --repair"):
            layout.read_run(path)
    assert (state.phase, state.last_step) == (whole.phase, whole.last_step)
    doctor.repair(doctor.examine(path))
    run.refresh()
    assert run.damaged == {}
    assert len(run.signals()) == 40


def test_find_runs_goes_two_levels_down(make_run, tmp_path):
    runs = [make_run(name, steps=range(1)) for name in ("a", "group/b")]
    make_run("x/y/z", steps=range(1))
    assert find_runs(tmp_path) == sorted(runs)
    assert find_runs(runs[0]) == [runs[0]]
    with pytest.raises(RunNotFound):
        find_runs(tmp_path / "nowhere")


def test_parts_are_plain_parquet_with_the_schema_version(make_run):
    part = _first_part(make_run(steps=range(2)), "actions")
    assert pq.read_schema(part).metadata[b"lldscope.schema"] == b"1"
