"""`watch --mirror`: what is sent, to tools that work, hang and fail.
To the real ones: test_mirror_tools.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from mirrored import IDS, RUN, expected, send, watch

from lldscope import open_run
from lldscope.core.errors import UsageError
from lldscope.diagnosis.assess import assess
from lldscope.monitor import export as mirror_module
from lldscope.monitor.export import PHASE_NUMBERS, MetricsExporter, answers_of

# A tool that writes down what it is told, and prints as Trackio does.
FAKE = """
import enum, json, os, time
AlertLevel = enum.Enum("AlertLevel", "INFO WARN ERROR")
LOG = os.environ["FAKE_LOG"]
def put(*what):
    print("* noise *", flush=True)
    with open(LOG, "a") as f:
        f.write(json.dumps(what) + "\\n")
class Run:
    _next_step = max([json.loads(l)[1] + 1 for l in open(LOG) if '"log"' in l], default=0) \\
        if os.path.exists(LOG) else 0
    def alert(self, title, text, level, step):
        put("alert", step, title, text, level.name)
def init(**how):
    put("init", how)
    return Run()
def log(values, step):
    if os.environ.get("FAKE_HANGS"):
        time.sleep(60)
    if os.environ.get("FAKE_FAILS"):
        raise RuntimeError("no room left in the tool")
    put("log", step, values)
def finish():
    put("finish")
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A package `trackio` in front of any other; gives what it was told."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "trackio.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "told.jsonl"))
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    log = tmp_path / "told.jsonl"
    return lambda: [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture(scope="module")
def watched():
    return watch()


@pytest.fixture
def assessment(watched):
    return watched[0].run.assess()


def test_the_sample_run_has_what_the_tests_need(assessment):
    assert {"decay", "collapse"} <= set(assessment.phases)
    assert any(end is not None for a in assessment.alerts for _, end in a.episodes)


def test_answers_do_not_change_as_the_run_goes_on(assessment):
    steps, answers = answers_of(assessment, IDS)
    with open_run(RUN) as run:
        signals, restarts = run.signals(), run._restarts()
    for n in np.linspace(1, len(signals), 9).astype(int):
        early_steps, early = answers_of(assess(signals[:n], restarts=restarts), IDS)
        assert np.array_equal(early_steps, steps[:n])
        assert np.array_equal(early, answers[:n])


def test_each_step_is_told_once(fake, watched, assessment):
    send(watched, "trackio:mine")
    calls = fake()
    assert [t[0] for t in calls[:1] + calls[-1:]] == ["init", "finish"]
    assert calls[0][1]["project"] == "mine"
    logs = [t[1:] for t in calls if t[0] == "log"]
    assert dict(logs) == expected(assessment)
    assert len(logs) == len(assessment.phases)
    alerts = {t[2].split()[1]: t for t in calls if t[0] == "alert"}
    assert alerts.keys() == {e.alert.rule for e in watched[2]}
    assert alerts["lld-collapse"][4] == "ERROR"

    send(watched, "trackio:mine")  # another watching: the tool holds all of it
    assert not [t for t in fake()[len(calls) :] if t[0] == "log"]


def test_watch_keeps_its_output_and_its_exit_code(fake, watched):
    """The tool prints on stdout, and fails."""
    command = [sys.executable, "-m", "lldscope", "watch", str(RUN), "--json"]
    done = subprocess.run(
        [*command, "--mirror", "trackio:mine"], env={**os.environ, "FAKE_FAILS": "1"},
        capture_output=True, text=True, timeout=200,
    )
    assert done.returncode == 11  # the run has collapsed
    rules = [json.loads(line).get("rule") for line in done.stdout.splitlines()]
    assert {e.alert.rule for e in watched[1].events} <= set(rules)
    assert done.stderr == (
        "lldscope: trackio:mine stopped, the run is no longer exported: "
        "RuntimeError: no room left in the tool\n"
    )


def test_a_tool_that_hangs_keeps_nobody_waiting(fake, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_HANGS", "1")
    monkeypatch.setattr(mirror_module, "FLUSH_SECONDS", 1.0)
    follower, look = follow(range(2000))  # far more than a pipe holds
    with MetricsExporter("trackio:mine") as mirror:
        began = time.monotonic()
        mirror.send(follower, look, [])
        end = time.monotonic()
    assert end - began < 30  # half of what the tool hangs
    assert time.monotonic() - end < 30
    assert capsys.readouterr().err == (
        "lldscope: trackio:mine did not take everything within 1 s.\n"
    )


@pytest.mark.parametrize("address", ["", "tensorboard", "trackio:", "wandb:/", "mlflow:x", "x:y"])
def test_an_address_that_is_none_is_a_usage_error(address):
    with pytest.raises(UsageError, match="write tensorboard:DIR, wandb:PROJECT"):
        MetricsExporter(address)


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    (tmp_path / "wandb").mkdir()  # what W&B itself leaves where it ran
    words = r"needs the package wandb.*pip install 'lldscope\[mirrors\]'"
    with pytest.raises(UsageError, match=words):
        MetricsExporter("wandb:mine")


def follow(steps, phases=None, alerts=(), first=True):
    """A follower whose run has these steps, and its look."""
    assessment = SimpleNamespace(
        evidence=SimpleNamespace(step=np.array(steps)),
        phases=phases or ["healthy"] * len(steps),
        alerts=alerts,
    )
    run = SimpleNamespace(name="made up", assess=lambda arl, rules: assessment)
    follower = SimpleNamespace(run=run, arl=None, rules=None)
    return follower, SimpleNamespace(first=first)


def test_only_what_is_new_or_changed_is_sent(fake):
    alarm = SimpleNamespace(rule="lld-decay", episodes=[(3, None)])
    with MetricsExporter("trackio:mine") as mirror:
        mirror.send(*follow(range(4), alerts=[alarm]), [])
        mirror.send(*follow(range(4), alerts=[alarm], first=False), [])
        mirror.send(*follow(range(6), alerts=[alarm], first=False), [])
        # Resumed at step 3, which is another one now.
        mirror.send(*follow(range(5), ["healthy"] * 4 + ["decay"], first=False), [])
    logs = [
        (step, values["lldscope/phase"], values["lldscope/alarm/lld-decay"])
        for _, step, values in (t for t in fake() if t[0] == "log")
    ]
    healthy, decay = PHASE_NUMBERS["healthy"], PHASE_NUMBERS["decay"]
    assert logs == [
        (0, healthy, 0), (1, healthy, 0), (2, healthy, 0), (3, healthy, 1),
        (4, healthy, 1), (5, healthy, 1),
        (3, healthy, 0), (4, decay, 0),
    ]


def test_a_step_without_a_phase_has_none(fake):
    with MetricsExporter("trackio:mine") as mirror:
        mirror.send(*follow(range(2), ["healthy", None]), [])
    logs = [values for _, _, values in (t for t in fake() if t[0] == "log")]
    assert ["lldscope/phase" in values for values in logs] == [True, False]
