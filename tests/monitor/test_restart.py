"""docs/alerting.md: a watcher outlives a restart of the training, also in its SLURM job; its rule
fires, its fields are those sent."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_runs import write_run
from rule_cases import simulate
from test_watch import kill

import lldscope
from lldscope.cli.watch import STATUS
from lldscope.diagnosis.assess import assess
from lldscope.monitor.follow import Follower
from lldscope.monitor.notify import as_text
from lldscope.user_rules.user_rules import load

PAGE = (Path(__file__).parents[2] / "docs" / "alerting.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


# Stands in for the training: the first time it dies in the middle, then it is resumed and ends.
SRUN = """#!{python}
import os, signal, sys, time
sys.path.insert(0, {here!r})
import lldscope
from made_up_runs import write_step
resumed = "--resume" in sys.argv
print(" ".join(sys.argv[1:]), file=open({told!r}, "a"))
run = sys.argv[sys.argv.index("--run") + 1]
def seen(state):  # by the watcher
    end = time.time() + 120
    while f'"state": "{{state}}"' not in open({jsonl!r}).read() and time.time() < end:
        time.sleep(0.2)
if resumed:
    seen("firing")
with lldscope.Recorder(run, resume=resumed) as recorder:
    for step in range(20, 60) if resumed else range(100):
        write_step(recorder, step, dies=False, at=time.time())
        if step == 30 and not resumed:
            recorder.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 40 and resumed:
            recorder.flush()
            seen("resolved")
"""


def test_the_slurm_job_of_the_documentation_survives_a_kill_and_goes_on(tmp_path: Path) -> None:
    script = next(text for text in blocks("bash") if "#SBATCH" in text)
    tools, file, jsonl = tmp_path / "bin", tmp_path / "told", tmp_path / "watch.jsonl"
    tools.mkdir()
    srun = SRUN.format(
        python=sys.executable,
        here=str(Path(__file__).parents[1] / "helpers"),
        told=str(file),
        jsonl=str(jsonl),
    )
    command = f'#!/bin/sh\nexec {sys.executable} -m lldscope "$@" --interval 0.2\n'
    for name, text in (("srun", srun), ("lldscope", command)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    (tmp_path / ".lldscope-notify").write_text("")
    job = ["bash", "-e", "-c", f"sleep() {{ :; }}\n{script}"]
    done = subprocess.run(job, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = file.read_text().splitlines()
    assert first == "lldscope train mine.yaml --run runs/mine"
    assert second == "lldscope train --resume --run runs/mine"
    lines = [json.loads(text) for text in jsonl.read_text().splitlines()]
    stalled = [x["state"] for x in lines if x.get("rule") == "stalled"]
    assert stalled == ["firing", "resolved"]
    assert (lines[-1]["life"], lines[-1]["last_step"]) == ("finished", 59)


def test_a_run_that_is_not_resumed_within_the_grace_period_is_over(
    tmp_path: Path, lldscope_command: Any
) -> None:
    run = write_run(tmp_path / "run", 20)
    kill(run)
    with lldscope.open_run(run) as reader:
        last = reader.signals()["time"].max()
    done = lldscope_command("watch", run, "--json", "--grace", 4, "--interval", 0.2)
    assert (done.returncode, time.time() - last >= 4) == (12, True)
    lines = [json.loads(text) for text in done.stdout.splitlines()]
    states = [(x["life"], x["over"]) for x in lines if x["type"] == "status"]
    assert states == [("stalled", True)], "while it waits nothing is said again"


def test_a_run_that_died_long_ago_is_not_waited_for(tmp_path: Path, lldscope_command: Any) -> None:
    run = write_run(tmp_path / "run", 20)
    kill(run)
    follower = Follower(run)
    state = follower.poll().state
    assert state.over
    with lldscope.open_run(run) as reader:
        times = reader.signals()["time"]
    assert state.last_row_age_seconds == pytest.approx(time.time() - times.iloc[-1], abs=60)
    assert lldscope_command("watch", run, "--grace", 0.1).returncode == 12


def test_a_resumed_run_is_said_to_be_and_messages_lead_to_the_dashboard(tmp_path: Path) -> None:
    run = write_run(tmp_path / "my run", 40)
    kill(run)
    follower = Follower(run, dashboard="http://host:8050/")
    (event,) = (e for e in follower.poll().events if e.alert.rule == "stalled")
    assert event.link == "http://host:8050/run/my%20run#alarm-stalled"
    assert as_text(event)[1].endswith(event.link)
    assert event.to_dict()["link"] == event.link
    with lldscope.Recorder(run, resume=True):
        (again,) = follower.poll().events
    title, body = as_text(again)
    assert title == "resumed: run my run"
    assert body.startswith("It stopped at step 39 and goes on")
    over = replace(again, state=replace(again.state, over=True))
    assert as_text(over)[0] == "resolved: stalled in run my run"


def test_the_example_rule_fires_where_responses_grow(tmp_path):
    (text,) = blocks("toml")
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    growing = {"response_tokens": [[0, 100], [80, 100], [90, 200], [120, 200]]}
    signals = simulate({"signals": growing, "noise": {"response_tokens": 5}}, 0)
    alerts = assess(signals, rules=[*load(tmp_path / "mine.toml")]).alerts
    assert [alert.rule for alert in alerts] == ["long-answers"]
    assert 85 <= alerts[0].step <= 100


def test_the_fields_of_a_status_line_are_all_named():
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| `status`")]
    assert set(STATUS) - {"schema"} == set(re.findall(r"`(\w+)`", row)) - {"status"}
