"""Tables and signals as plain files."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import lldscope
from lldscope.core.schema import TABLES, VIEWS
from lldscope.explore.export import export_run


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_export_names_what_it_wrote_and_overwrites_nothing(
    make_run, tmp_path, lldscope_command, kind
):
    path, folder = make_run(), tmp_path / "out"
    done = lldscope_command("export", path, "--to", folder, "--format", kind, "--json")
    entries = json.loads(done.stdout)
    assert {Path(row["file"]).name for row in entries} == {p.name for p in folder.iterdir()}
    rows = {Path(row["file"]).stem: row["rows"] for row in entries}
    run = lldscope.open_run(path)
    assert set(rows) <= {*TABLES, *VIEWS}
    for name, count in rows.items():
        assert run.sql(f"SELECT count(*) n FROM {name}")["n"][0] == count
    assert {"steps", "actions", "signals", "action_signals"} <= set(rows)
    before = {p: p.read_bytes() for p in folder.iterdir()}
    again = lldscope_command("export", path, "--to", folder, "--format", kind)
    assert (again.returncode, again.stdout) == (2, "")
    assert "already exists" in again.stderr
    assert {p: p.read_bytes() for p in folder.iterdir()} == before
    for bad, words in ((["--tables", "nope"], "no table nope"), (["--to", path / "x"], "inside")):
        refused = lldscope_command("export", path, "--to", tmp_path / "new", *bad)
        assert refused.returncode == 2
        assert words in refused.stderr
    assert not (tmp_path / "new").exists()
    assert not (path / "x").exists()


def test_exported_numbers_are_the_runs_own(make_run, tmp_path):
    run = lldscope.open_run(make_run())
    export_run(run, tmp_path / "p")
    export_run(run, tmp_path / "c", "csv", ["signals"])
    signals = run.signals()
    exported = pd.read_parquet(tmp_path / "p" / "signals.parquet")[list(signals.columns)]
    pd.testing.assert_frame_equal(exported, signals, check_dtype=False)
    as_text = pd.read_csv(tmp_path / "c" / "signals.csv")[list(signals.columns)]
    counts = signals.select_dtypes("Int64").columns  # in text, a missing count is NaN, not <NA>
    floats = signals.astype(dict.fromkeys(counts, float))
    pd.testing.assert_frame_equal(as_text, floats, check_dtype=False, rtol=1e-6)
