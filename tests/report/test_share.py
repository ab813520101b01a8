"""`lldscope share`: the folder is a dataset, a run with the same verdict, and a page; what it does
not say; and the way to the hub and back, with a stand-in for the hub."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hub import Hub, hub

import lldscope
from lldscope.core.schema import TABLES
from lldscope.report.share import TEXTS

SAMPLE = Path(__file__).parents[2] / "sample_runs" / "grpo"
SECRET, KEY = "the-prompt-is-private", "hf_abcdefghijklmnopqrstuvwx"


@pytest.fixture
def run(tmp_path):
    """Two attempts of a run that goes on, in small parts, with texts, a key and a note."""
    place = tmp_path / "runs" / "mine"
    for attempt in (1, 2):
        config = {"lr": 0.1, "hub": {"hf_token": KEY}}
        with lldscope.Recorder(place, config=config, resume=attempt == 2) as recorder:
            for step in range(attempt * 4):
                recorder.step(step=step, n_responses=2, n_correct=1, reward_sum=1.0)
                recorder.responses(
                    step=step, response_id=[0, 1], group_id=[0, 0], reward=[0.0, 1.0],
                    correct=[False, True], data_source="letters", text=SECRET, question=SECRET,
                    golden=[json.dumps([SECRET])] * 2,
                )
                recorder.tokens(
                    step=step, response_id=[1], position=[0], token_id=[7], text=[SECRET]
                )
                recorder.flush()
            recorder.event("checkpoint", step=step, note=f"https://me:{KEY}@host/x")
    return place


def everything(folder: Path) -> bytes:
    """The content of all files, of Parquet the rows."""
    import pyarrow.parquet as pq

    return b"".join(
        str(pq.read_table(path).to_pylist()).encode() if path.suffix == ".parquet"
        else path.read_bytes()
        for path in folder.rglob("*") if path.is_file()
    )


def answer(lldscope_command, run: object, **options: object) -> dict:
    state = json.loads(lldscope_command("check", run, "--json", **options).stdout)
    return {k: v for k, v in state.items() if k not in ("run", "path", "last_row_age_seconds")}


def test_the_copy_is_a_run_with_the_same_rows_and_says_no_texts(run, tmp_path, lldscope_command):
    lldscope_command("annotate", run, "--note", SECRET)
    folder = tmp_path / "shared"
    done = lldscope_command("share", run, "--out", folder)
    assert (done.returncode, "without texts" in done.stderr) == (0, True)
    content = everything(folder)
    for word in (SECRET, KEY, str(tmp_path), f'"{os.uname().nodename}"'):
        assert word.encode() not in content, word
    with lldscope.open_run(run) as before, lldscope.open_run(folder) as after:
        for table in TABLES:
            texts = ", ".join(f"NULL AS {name}" for name in TEXTS.get(table, ()))
            columns = f"* REPLACE ({texts})" if texts else "*"
            query = f"SELECT {columns} FROM all_{table} ORDER BY ALL"
            assert before.sql(query).equals(after.sql(query)), table
    assert lldscope_command("doctor", folder).returncode == 0
    again = lldscope_command("share", run, "--out", folder)
    assert (again.returncode, "not empty" in again.stderr) == (2, True)
    whole = tmp_path / "whole"
    assert lldscope_command("share", run, "--out", whole, "--texts").returncode == 0
    content = everything(whole)
    assert SECRET.encode() in content
    assert KEY.encode() not in content


def test_what_is_damaged_is_left_out_and_said(run, tmp_path, lldscope_command):
    part = sorted((run / "responses").glob("*.parquet"))[1]
    part.write_bytes(part.read_bytes()[:-100])
    done = lldscope_command("share", run, "--out", tmp_path / "shared")
    assert part.name in done.stderr
    assert "steps" in done.stderr
    with lldscope.open_run(tmp_path / "shared") as copy, lldscope.open_run(run) as before:
        n = "SELECT count(*) AS n FROM all_responses"
        assert copy.sql(n).n[0] == before.sql(n).n[0] > 0


@pytest.mark.slow
def test_every_table_is_read_by_datasets(tmp_path, lldscope_command, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "shared"
    assert lldscope_command("share", SAMPLE, "--out", folder).returncode == 0
    names = datasets.get_dataset_config_names(str(folder))
    assert {"signals", "steps", "responses", "actions", "tokens"} <= {*names}
    with lldscope.open_run(SAMPLE) as run:
        for name in names:
            rows = datasets.load_dataset(
                str(folder), name, split="train", cache_dir=str(tmp_path / "cache")
            )
            (n,) = run.sql(f"SELECT count(*) AS n FROM {name}").n
            assert (len(rows), n > 0) == (n, True), name


@pytest.mark.slow
def test_to_the_hub_and_back(tmp_path, lldscope_command, run):
    logs = Path(__file__).parents[1] / "fixtures" / "trl" / "trainer_state.json"
    with hub() as address:
        options = {"env": os.environ | {
            "HF_ENDPOINT": address, "HF_TOKEN": Hub.token, "HF_HOME": str(tmp_path / "hf"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }}
        push = ["share", SAMPLE, "--push", "me/mine", "--out"]
        done = lldscope_command(*push, tmp_path / "one", **options)
        assert done.returncode == 0, done.stderr
        kinds = ("datasets", "spaces")
        assert done.stdout.split() == [f"{address}/{kind}/me/mine" for kind in kinds]
        assert [wish["visibility"] for wish in Hub.created] == ["private"] * 2
        assert {*Hub.repositories["spaces", "me/mine"]} == {
            ".gitattributes", "README.md", "index.html"
        }
        there = answer(lldscope_command, "hf://datasets/me/mine", **options)
        assert there == answer(lldscope_command, SAMPLE)

        Hub.repositories["datasets", "me/mine"]["own.txt"] = b"mine"
        done = lldscope_command(
            "share", run, "--push", "me/mine", "--out", tmp_path / "two", **options
        )
        assert done.returncode == 0, done.stderr
        assert "own.txt" in Hub.repositories["datasets", "me/mine"]
        there = answer(lldscope_command, "hf://datasets/me/mine", **options)
        assert there == answer(lldscope_command, run)

        Hub.repositories["datasets", "me/logs"] = {"a/trainer_state.json": logs.read_bytes()}
        for place in ("me/logs", "me/logs/a/trainer_state.json"):
            done = lldscope_command("diagnose", f"hf://datasets/{place}", "--json", **options)
            assert (done.returncode, json.loads(done.stdout)["last_step"]) == (13, 4)
        for name, words in {
            "me/logs": "holds something else", "mine": "OWNER/NAME", "../x": "OWNER/NAME",
        }.items():
            done = lldscope_command(*push[:2], "--push", name, "--out", tmp_path / "x", **options)
            assert done.returncode != 0
            assert words in done.stderr
            assert [*Hub.repositories["datasets", "me/logs"]] == ["a/trainer_state.json"]
            if name == "me/logs":  # what was to be uploaded is there
                assert (tmp_path / "x" / "README.md").is_file()
        options["env"]["HF_TOKEN"] = "hf_another"
        done = lldscope_command(*push, tmp_path / "y", **options)
        assert (done.returncode, "was not uploaded" in done.stderr) == (1, True)
