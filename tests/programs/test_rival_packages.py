"""The comparison with other packages: what they are asked, and what is counted. None is needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from rule_cases import frame

from benchmarks import __main__ as everything
from benchmarks import noise, rival_packages, rival_worker
from benchmarks.rival_packages import BY_REWARD, MADE_UP, NOISY, RECORDED, Log, Verdict

SAMPLES = Path(__file__).parents[2] / "sample_runs"

# In place of the worker: critical at the step of the least reward, a warning at the first step.
STUB = """
import json, sys
verdicts = []
for log in json.load(sys.stdin):
    worst = log["step"][log["reward"].index(min(log["reward"]))]
    verdict = {"first": {"critical": worst, "warning": log["step"][0]}, "alarms": ["least"]}
    verdicts.append({"stub": verdict, "silent": {"first": {}, "alarms": []}})
print(json.dumps(verdicts))
"""


def test_what_is_not_logged_is_left_out_and_not_nan():
    signals = frame({"step": [3, 4], "reward": [0.5, np.nan], "entropy": [0.25, 0.0]})
    payload = json.loads(json.dumps(rival_packages.columns(signals), allow_nan=False))
    assert tuple(payload) == rival_worker.ROW
    rows = rival_worker.rows(payload)
    assert rows == [{"step": 3, "reward": 0.5, "entropy": 0.25}, {"step": 4, "entropy": 0.0}]
    renamed = rival_worker.renamed(rows[0], {"step": "step", "reward": "reward_mean"})
    assert renamed == {"step": 3, "reward_mean": 0.5}


def test_a_critical_alarm_is_a_warning_as_well_and_information_is_none():
    alarms = [("a", "info", 1), ("b", "warn", 5), ("c", "CRITICAL", 7), ("b", "WARNING", 9)]
    assert rival_worker.verdict(alarms) == {
        "first": {"warning": 5, "critical": 7},
        "alarms": ["b", "c"],
        "events": [("b", "warning", 5), ("c", "critical", 7), ("c", "warning", 7),
                   ("b", "warning", 9)],
    }
    assert rival_worker.verdict([("c", "critical", None)])["first"] == {
        "critical": None,
        "warning": None,
    }
    assert rival_worker.verdict([("a", "OK", 1), ("a", "SKIPPED", 1)])["first"] == {}


def cells(table: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert len({len(row) for row in rows}) == 1
    return {name: values for name, *values in rows}


def test_the_table_counts_by_level_and_leads_to_the_fall():
    signals = frame({"step": [0], "reward": [0.5]})
    simple = next(iter(rival_packages.SIMPLE))

    def judged(group, fall, theirs, finished, rule):
        verdicts = {"live": Verdict(theirs), "finished": Verdict(finished), simple: Verdict(rule)}
        return Log(group, signals, fall), verdicts

    undated = {"critical": None, "warning": None}
    columns = cells(
        rival_packages.table(
            [
                judged(RECORDED, 50, {"critical": 40, "warning": 20}, undated, {"warning": 50}),
                judged(RECORDED, 50, {"critical": 60, "warning": 30}, {"warning": None}, {}),
                judged(RECORDED, 50, {}, {}, {"warning": 30}),
                judged(RECORDED, None, {"warning": 7}, {}, {}),
                judged(RECORDED, None, {}, undated, {}),
                judged(NOISY, 50, {"warning": 10}, {}, {}),
                judged(MADE_UP, None, {}, {}, {"warning": 3}),
            ],
            BY_REWARD,
        )
    )
    heading = columns["critical / warning or worse"]
    assert [heading[i] for i in (0, 3, 8)] == [
        "3 falls: found",
        "2 held: false",
        "1 made up: false",
    ]
    assert columns["live"] == [
        "2 / 2", "1 / 2", "0 / 25", "0 / 1", "0 / 1", "0 / 1", "– / 40", "–", "0 / 0"
    ]
    assert columns["finished"][:4] == ["1 / 2", "– / –", "– / –", "1 / 1"]
    assert columns[simple] == ["2", "1", "10", "0", "0", "0", "–", "–", "1"]


def write_index(folder: Path, lines: list[dict]) -> None:
    (folder / "index.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def bank(tmp_path):
    """A bank whose test runs are two of the sample runs."""
    lines = [
        {"run": "a", "outcome": "collapsed", "collapse_step": 100, "path": "grpo"},
        {"run": "b", "outcome": "held", "path": "grpo-llds"},
    ]
    for line in lines:
        line |= {"split": "test", "path": str(SAMPLES / line["path"])}
    write_index(tmp_path, lines)
    return tmp_path


@pytest.fixture
def alarm_bank(tmp_path):
    """A bank by held-out score: one run degraded, one held, and one between, which is left out."""
    lines = [
        {"run": "a", "outcome": "degraded", "degraded_step": 100, "path": "grpo"},
        {"run": "b", "outcome": "held", "degraded_step": None, "path": "grpo-llds"},
        {"run": "c", "outcome": "grey", "degraded_step": None, "path": "grpo-llds"},
    ]
    folder = tmp_path / "alarms"
    folder.mkdir()
    write_index(folder, [line | {"path": str(SAMPLES / line["path"])} for line in lines])
    return folder


def test_every_detector_judges_the_same_logs(bank, alarm_bank, monkeypatch, capsys):
    worker = bank / "worker.py"
    worker.write_text(STUB)
    monkeypatch.setattr(rival_packages, "WORKER", worker)
    monkeypatch.setattr(rival_packages, "SEEDS", 1)
    monkeypatch.setattr(rival_packages, "python_of_packages", lambda: Path(sys.executable))
    rival_packages.main(bank, alarm_bank)
    versions, first, second, *lines = capsys.readouterr().out.split("\n\n")
    assert versions == ", ".join(rival_packages.PACKAGES)
    by_held_out = cells(first)
    heading = by_held_out["critical / warning or worse"]
    assert [heading[i] for i in (0, 3)] == ["1 degraded: found", "1 held: false"]
    assert by_held_out["stub"][0] == "1 / 1"
    assert by_held_out.keys() == cells(second).keys()
    columns = cells(second)
    heading = columns["critical / warning or worse"]
    kinds = len(noise.HEALTHY)
    assert [heading[i] for i in (0, 3, 8)] == [
        "1 falls: found", "1 held: false", f"{kinds} made up: false"
    ]

    (fall, signals), label = noise.labelled(bank, "test")
    assert label[0] is None
    worst = int(signals["step"].iloc[signals["reward"].argmin()])
    assert columns["stub"][:4] == [
        "1 / 1", f"{int(worst < fall)} / 1",
        f"{fall - worst} / {fall - int(signals['step'].iloc[0])}", "1 / 1",
    ]
    assert columns["stub"][-1] == f"{kinds} / {kinds}"
    assert columns["silent"] == ["0 / 0", "0 / 0", "– / –", "0 / 0"] * 2 + ["0 / 0"]
    assert columns["lldscope, five signals"][0].endswith(" / 1")
    assert columns["lldscope, all it records"][4:] == ["–"] * 5  # thinned or made up: not recorded
    assert rival_packages.SIMPLE.keys() <= columns.keys()
    assert f"  stub: {kinds} least" in "\n".join(lines).splitlines()


def test_the_packages_are_installed_once_for_each_choice_of_versions(tmp_path, monkeypatch):
    calls = []

    def install(command, **options):
        calls.append(command)
        (tmp_path / rival_packages.ENVIRONMENT).mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(rival_packages, "ROOT", tmp_path)
    monkeypatch.setattr(rival_packages.subprocess, "run", install)
    python = rival_packages.python_of_packages()
    assert python.is_relative_to(tmp_path / ".envs")
    assert calls[0][-len(rival_packages.PACKAGES) :] == list(rival_packages.PACKAGES)
    rival_packages.python_of_packages()
    assert len(calls) == 1
    monkeypatch.setattr(rival_packages, "PACKAGES", ("rlprobe==9",))
    rival_packages.python_of_packages()
    assert len(calls) == 2


@pytest.mark.parametrize(("names", "rivals"), [([], False), (["rivals"], True)])
def test_packages_are_installed_only_where_that_is_asked_for(names, rivals, monkeypatch):
    ran = []
    for name in everything.BY_NAME:
        monkeypatch.setitem(everything.BY_NAME, name, lambda name=name: ran.append(name))
    monkeypatch.setattr("sys.argv", ["bench", *names])
    everything.main()
    assert ran == (names or list(everything.BENCHMARKS))
    assert ("rivals" in ran) == rivals
