"""Runs of other versions: older ones open, newer ones are refused, a column is one line."""

from __future__ import annotations

import json
import subprocess
import sys

import pandas as pd
import pyarrow as pa
import pytest
from sealed_runs import rewrite

import lldscope
from lldscope.core.errors import NewerSchema
from lldscope.core.schema import SCHEMA_VERSION, TABLES
from lldscope.storage import json_files, layout
from lldscope.storage.manifest import MANIFEST_DIR, manifest_path


def test_what_an_older_version_did_not_record_is_null(make_run):
    path = make_run()
    before = lldscope.open_run(path).signals()
    absent = {"steps": ["entropy_sum"], "actions": ["logp_post_sum", "llds_gate"]}
    rewrite(path, lambda table, rows: rows.drop_columns(absent.get(table, [])))
    run = lldscope.open_run(path)
    now = run.signals()
    assert run.damaged == {}
    names = {"entropy", "delta_correct", "llds_gate_share"}
    assert now[list(names)].isna().all(axis=None)
    assert before[list(names)].notna().any().all()
    columns = ["step", "reward", "correct_logp", "grad_norm", "truncated_share"]
    pd.testing.assert_frame_equal(now[columns], before[columns])
    assert run.sql("SELECT count(*) n, count(logp_post_sum) known FROM actions")["known"][0] == 0


def test_a_table_that_was_not_recorded_at_all_is_empty(make_run):
    path = make_run(steps=range(3))
    for manifest in (path / MANIFEST_DIR).glob("*.jsonl"):
        lines = json_files.read_lines(manifest)[0]
        for entry in lines:
            entry["parts"].pop("actions", None)
        manifest.write_bytes(
            b"".join(json_files.with_checksum(json_files.to_json(e)) for e in lines)
        )
    run = lldscope.open_run(path)
    assert len(run.signals()) == 3
    assert run.signals()["correct_logp"].isna().all()
    assert run.damaged == {}


def test_columns_and_tables_of_a_later_version_are_ignored(make_run):
    path = make_run()
    before = lldscope.open_run(path).signals()

    def widen(table: str, rows: pa.Table) -> pa.Table:
        unknown = pa.array([{"a": [1]}] * len(rows))
        return rows.append_column("of_tomorrow", unknown).append_column("step_2", unknown)

    rewrite(path, widen)
    manifest = manifest_path(path, 1, 0)
    for entry in json_files.read_lines(manifest)[0]:
        entry["parts"]["dreams"] = {"file": "a1-r0-000001.parquet", "anything": "else"}
        with open(manifest, "ab") as file:
            file.write(json_files.with_checksum(json_files.to_json(entry)))
        break
    (path / "dreams").mkdir()
    (path / "dreams" / "a1-r0-000001.parquet").write_bytes(b"?")
    (path / "of_tomorrow.json").write_text("{}")
    run = lldscope.open_run(path)
    pd.testing.assert_frame_equal(run.signals(), before)
    assert run.damaged == {}


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 10**18])
def test_a_newer_run_is_refused_with_what_to_do(make_run, lldscope_command, version):
    path = make_run(steps=range(2))
    info = json.loads((path / layout.RUN_FILE).read_text())
    (path / layout.RUN_FILE).write_text(json.dumps(info | {"schema": version}))
    with pytest.raises(NewerSchema, match="Upgrade lldscope to open it"):
        lldscope.open_run(path)
    with pytest.raises(NewerSchema, match="Upgrade"):
        lldscope.Recorder(path, resume=True)
    done = lldscope_command("check", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"written with schema {version}" in done.stderr


# What a developer adds to schema.py, and everything that follows from it.
_NEW_COLUMN = """
import dataclasses, sys
from pathlib import Path
from click.testing import CliRunner
from lldscope.core import schema

old = schema.TABLES["actions"]
new = schema.Column("warmth", "float", "K", "How warm the action was.")
schema.TABLES["actions"] = dataclasses.replace(old, columns=(*old.columns, new))

import lldscope
from lldscope.cli import cli

run, before, folder = map(Path, sys.argv[1:])
with lldscope.Recorder(run) as recorder:
    for step in range(3):
        recorder.actions(step=step, response_id=[0, 1], action_index=0, warmth=[step, None])
        recorder.step(step=step)
assert not recorder.dropped, recorder.dropped
opened = lldscope.open_run(run)
assert opened.damaged == {}
assert opened.sql("SELECT sum(warmth) s, count(warmth) n FROM actions").values.tolist() == [[3, 3]]
older = lldscope.open_run(before).sql("SELECT count(*) n, count(warmth) known FROM actions")
assert older["n"][0] > 0 and older["known"][0] == 0
shown = CliRunner().invoke(cli, ["schema", "actions", "--markdown"], catch_exceptions=False)
assert "| `warmth` | float | K | yes | How warm the action was. |" in shown.output
CliRunner().invoke(
    cli, ["export", str(run), "--to", str(folder), "--tables", "actions", "--format", "csv"],
    catch_exceptions=False,
)
assert (folder / "actions.csv").read_text().split("\\n")[0].endswith('"warmth"')
"""


def test_a_new_column_is_one_line_in_the_registry(make_run, tmp_path):
    before = make_run("before", steps=range(3))
    done = subprocess.run(
        [sys.executable, "-c", _NEW_COLUMN, str(tmp_path / "r"), str(before), str(tmp_path / "x")],
        capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "warmth" not in TABLES["actions"].names
