"""`lldscope query` and `export`: values that other programs misread, answers that are too much."""

from __future__ import annotations

import csv
import io
import json
import sys

import pytest
from click.testing import CliRunner

import lldscope
from lldscope.cli import cli
from lldscope.core.errors import UsageError

TEXTS = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "fine", "'=1", "", None]


@pytest.fixture
def path(tmp_path):
    with lldscope.Recorder(tmp_path / "run") as recorder:
        ids = list(range(len(TEXTS)))
        recorder.responses(step=0, response_id=ids, reward=[-1.5] * len(ids), text=TEXTS)
        recorder.step(step=0, n_responses=len(ids), lr=-0.5)
    return tmp_path / "run"


def run(*arguments: object) -> str:
    answer = CliRunner().invoke(cli, [*map(str, arguments)])
    assert answer.exit_code == 0, answer.output
    return answer.stdout


@pytest.mark.parametrize("command", ["query", "export"])
def test_text_that_a_spreadsheet_would_compute_is_quoted_and_numbers_are_not(
    path, tmp_path, command
):
    if command == "query":
        sql = "SELECT text, reward FROM responses ORDER BY response_id"
        text = run("query", path, sql, "--csv")
    else:
        run("export", path, "--to", tmp_path / "out", "--format", "csv")
        text = (tmp_path / "out" / "responses.csv").read_text()
    rows = [*csv.DictReader(io.StringIO(text, newline=""))]
    formulas = [t is not None and t[:1] in {*"=+-@\t"} and t != "" for t in TEXTS]
    expected = [f"'{t}" if formula else t or "" for t, formula in zip(TEXTS, formulas, strict=True)]
    assert [row["text"] for row in rows] == expected
    assert {row["reward"] for row in rows} == {"-1.5"}


ANSWERS = {
    "to_timestamp(0)": "1970-01-01 00:00:00+00",
    "[to_timestamp(0)]": "1970-01-01 00:00:00+00",
    "INTERVAL 26 HOUR": "26:00:00",
    "INTERVAL '178000000 years'": "178000000 years",
    "INTERVAL '-5 months'": "-5 months",
    "{'a': [INTERVAL '178000000 years']}": "178000000 years",
    "union_value(k := INTERVAL '178000000 years')": "178000000 years",
    "INTERVAL '178000000 years'::VARIANT": "178000000 years",
    "DATE '12000-01-01'": "12000-01-01",
    "'-infinity'::DATE": "-infinity",
    "MAP {'infinity'::TIMESTAMP: 1}": "infinity",
    "TIMESTAMP '290000-01-01 (BC)'": "290000-01-01 (BC)",
    "TIMESTAMPTZ '120000-01-01'": "120000-01-01",
    "TIMETZ '10:00:00+15:59:59'": "10:00:00+15:59:59",
    "TIME '24:00:00'": "24:00:00",
    "340282366920938463463374607431768211455::UHUGEINT": "768211455",
    "[1, 2]::INT[2]": "1",
    "MAP {[1]: {'a': (1, 2)}}": "[1]",
}


def test_times_and_nested_values_are_answered(path):
    sql = f"SELECT {', '.join(ANSWERS)}"
    _, cells = csv.reader(io.StringIO(run("query", path, f"{sql}; ", "--csv")))
    values = json.loads(run("query", path, f"{sql} -- a remark", "--json")).values()
    table = run("query", path, sql)
    for (what, answer), cell, value in zip(ANSWERS.items(), cells, values, strict=True):
        assert answer in cell, what
        assert answer in str(value), what
        assert answer in table, what


@pytest.mark.parametrize(
    "value",
    ["INTERVAL '178000000 years'", "[INTERVAL '178000000 years']", "'infinity'::DATE",
     "{'a': INTERVAL '178000000 years'}", "INTERVAL '178000000 years'::VARIANT"],
)
def test_what_python_cannot_hold_is_a_sentence_in_a_frame(path, value):
    with lldscope.open_run(path) as reader, pytest.raises(UsageError, match=r"convert|cannot hold"):
        reader.sql(f"SELECT {value} AS x")


def test_what_is_too_deep_gets_a_sentence(path):
    depth = 3 * sys.getrecursionlimit()
    for sql in (f"SELECT {'[' * 150}1{']' * 150}", f"SELECT {'[' * depth}1{']' * depth}"):
        for options in ([], ["--json"], ["--csv"]):
            answer = CliRunner().invoke(cli, ["query", str(path), sql, *options])
            assert answer.exception is None or isinstance(answer.exception, UsageError)
            assert "Stack Trace" not in f"{answer.output}{answer.exception}"

