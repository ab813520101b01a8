"""Name, tags and note of a run: by command, and where they are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lldscope_dashboard.app import make_app
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.pages.router import page
from made_up_runs import write_run
from page_content import links

import lldscope
from lldscope.core.errors import UsageError
from lldscope.storage.notes import about, write_about

HOSTILE = "<b>x</b>\u202egnp"


def test_the_last_name_and_note_count_and_tags_come_and_go() -> None:
    notes = [
        {"kind": "name", "text": "a"}, {"kind": "tag", "text": "t"}, {"kind": "tag", "text": "u"},
        {"kind": "untag", "text": "t"}, {"kind": "untag", "text": "never"},
        {"kind": "note", "text": "n"}, {"kind": "name", "text": "b"}, {"kind": "note", "text": ""},
        {"kind": "acknowledge", "rule": "r", "step": 1, "until": None},
    ]
    assert about(notes) == {"name": "b", "tags": ["u"]}
    assert about([*notes, {"kind": "name", "text": ""}]) == {"tags": ["u"]}


def test_the_command_names_tags_and_notes_and_every_other_command_follows(
    tmp_path: Path, lldscope_command: Any
) -> None:
    run = tmp_path / "runs" / "one"
    write_run(run, 20)
    result = lldscope_command(
        "annotate", run, "--name", "Baseline", "--tag", "paper", "--tag", "x", "--untag", "x",
        "--note", "lr too high",
    )
    assert result.stdout.split("\n")[:3] == ["name  Baseline", "tags  paper", "note  lr too high"]
    (row,) = json.loads(lldscope_command("runs", run.parent, "--json").stdout)
    assert (row["run"], row["path"], row["tags"]) == ("Baseline", "one", ["paper"])
    assert "Baseline #paper" in lldscope_command("runs", run.parent).stdout
    assert json.loads(lldscope_command("check", run, "--json").stdout)["run"] == "Baseline"
    assert "Post-mortem of Baseline" in lldscope_command("report", run, "--format", "md").stdout
    lldscope_command("annotate", run, "--name", "")
    with lldscope.open_run(run) as opened_run:
        assert opened_run.name == "one"
        assert opened_run.damaged == {}
    with pytest.raises(UsageError, match="at most 60 characters"):
        write_about(run, "tag", "x" * 61)


def test_the_report_is_had_from_the_page_with_tags_note_and_configuration(tmp_path: Path) -> None:
    with lldscope.Recorder(tmp_path / "one", config={"optim": {"lr": 1e-6}, "x": HOSTILE}) as rec:
        rec.step(step=0, n_responses=1, reward_sum=1.0)
    write_about(tmp_path / "one", "tag", "paper")
    write_about(tmp_path / "one", "note", f"told {HOSTILE}")
    runs = RunRegistry(tmp_path)
    client = make_app(runs).server.test_client()
    assert "/report/one" in links(page(runs, "/run/one", ""))
    answer = client.get("/report/one")
    assert answer.headers["Content-Disposition"] == "attachment; filename=one.html"
    for phrase in ("Post-mortem of one", "<dd>paper</dd>", "optim.lr", "1e-06", "told &lt;b&gt;"):
        assert phrase in answer.text
    assert HOSTILE not in answer.text
    assert "<script" not in answer.text
    assert "http" not in answer.text.replace("http-equiv", "")
    assert client.get("/report/nowhere").status_code == 404
