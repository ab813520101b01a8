"""Runs of other versions: older ones open, newer ones are refused, a column is one line."""

from __future__ import annotations

import json

import pandas as pd
import pyarrow as pa
import pytest
from sealed_runs import rewrite

import lldscope
from lldscope.core.errors import NewerSchema
from lldscope.core.schema import SCHEMA_VERSION
from lldscope.storage import json_files, layout
from lldscope.storage.manifest import manifest_path


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


def test_columns_and_tables_of_a_later_version_are_ignored(make_run):
    path = make_run()
    before = lldscope.open_run(path).signals()

    def widen(table: str, rows: pa.Table) -> pa.Table:
        unknown = pa.array([{"a": [1]}] * len(rows))
        return rows.append_column("of_tomorrow", unknown).append_column("step_2", unknown)

    rewrite(path, widen)
    manifest = manifest_path(path, 1, 0)
    entry = json_files.read_lines(manifest)[0][0]
    entry["parts"] = {"dreams": {"file": "a1-r0-000001.parquet", "anything": "else"}}
    with open(manifest, "ab") as file:
        file.write(json_files.with_checksum(json_files.to_json(entry)))
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
