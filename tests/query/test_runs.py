"""Reading runs: attempts, damage, safety, keeping up."""

from __future__ import annotations

import json

import pytest
from sealed_runs import make_unreadable

import lldscope
from lldscope.core.errors import LldscopeError, RunNotFound
from lldscope.monitor.summary import read_summary
from lldscope.report import post_mortem
from lldscope.report.brief import brief
from lldscope.runs import find_runs
from lldscope.storage.heartbeats import pid_namespace, process_exited


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
    for text, words in (
        ('{"a": 1}', "not a run.json of lldscope"),
        ("[1, 2", "cannot be read"),
        ("[]", "not a run.json of lldscope"),
    ):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(LldscopeError, match=words):
            lldscope.open_run(tmp_path)


def test_fields_of_another_kind_are_named_and_ignored_and_others_believed(make_run):
    path = make_run(steps=range(3))
    info = json.loads((path / "run.json").read_text())
    odd = {"status": 3, "world_size": "x", "name": "by hand"}
    (path / "run.json").write_text(json.dumps(info | odd))
    (path / "heartbeat" / "r0.json").write_text('{"time": "now"}')
    with lldscope.open_run(path) as run:
        assert [run.info[key] for key in odd] == [None, None, "by hand"]
        assert {"status", "world_size"} <= {*run.damaged["run.json"].replace(",", "").split()}
        assert "heartbeat/r0.json" in run.damaged
        assert run.heartbeats() == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [("attempts", [{"started": 1, "attempt": []}]), ("imported", [1]), ("imported", {"counted": 5}),
     ("imported", {"notes": 5}), ("reason", 5), ("trainer", 5), ("tags", 5), ("note", [])],
)
def test_a_field_of_another_kind_ends_neither_report_nor_list(make_run, field, value):
    path = make_run(steps=range(3))
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {field: value}))
    with lldscope.open_run(path) as run:
        assert run.damaged["run.json"] == f"its {field} cannot be read"
        assert brief(run, post_mortem(run))["run"] == run.name
    assert read_summary("a", path, path.parent).error is None


def test_a_number_that_no_process_has_is_none_that_has_ended():
    assert not process_exited({"pid": 2**31, "space": pid_namespace()})


def test_find_runs_goes_two_levels_down(make_run, tmp_path):
    runs = [make_run(name, steps=range(1)) for name in ("a", "group/b")]
    make_run("x/y/z", steps=range(1))
    assert find_runs(tmp_path) == sorted(runs)
    assert find_runs(runs[0]) == [runs[0]]
    with pytest.raises(RunNotFound):
        find_runs(tmp_path / "nowhere")


def test_a_part_that_is_as_it_was_written_and_cannot_be_read_is_named(make_run):
    path = make_run(steps=range(3))
    make_unreadable(path)
    with lldscope.open_run(path) as run:
        assert run.rows("SELECT count(*) FROM responses").rows == [(0,)]
        assert [name.partition("/")[0] for name in run.damaged] == ["responses"]
        assert len(run.signals()) == 3
