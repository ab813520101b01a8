"""`/metrics` in Prometheus' text format, and the rules of docs/alerting.md over it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import lldscope_dashboard.routes as routes
import pytest
import yaml
from lldscope_dashboard.app import make_app
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.data.run_summaries import LAST
from made_up_runs import write_run

import lldscope
from lldscope.core.safe_text import is_invisible
from lldscope.storage.notes import write_note

DOCS = Path(__file__).parents[2] / "docs" / "prometheus"
LABEL = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"([a-z_]+)\{{({LABEL}(?:,{LABEL})*)\}} (NaN|[+-]Inf|[-+0-9.e]+)")


def scraped(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Samples by name and labels; every line must be one, or a comment on the lines after it."""
    values, announced = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            announced.add(line.split()[2])
        if line.startswith("#"):
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert match[1] in announced
        labels = re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', match[2])
        key = (match[1], frozenset(labels))
        assert key not in values, f"twice: {line}"
        values[key] = float(match[3])
    assert text.endswith("\n")
    return values


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "dying", 140, dies=True)
    with lldscope.Recorder(root / "odd", name='a "b"\\\nc') as recorder:
        recorder.step(step=0, n_responses=1, reward_sum=float("inf"))
    (root / "broken").mkdir()
    (root / "broken" / "run.json").write_text("{")
    return root


@pytest.mark.slow
def test_every_run_is_told_with_verdict_alarms_and_last_values(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "READ_SECONDS", 60.0)
    runs = RunRegistry(root)
    answer = make_app(runs).server.test_client().get("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    values = scraped(answer.text)

    def of(name: str, **labels: str) -> list[float]:
        target = set(labels.items())
        return [v for (n, pairs), v in values.items() if n == name and target <= pairs]

    state = runs.snapshot("dying").state
    assert of("lldscope_verdict", run="dying", verdict="critical") == [1.0]
    assert sum(of("lldscope_verdict", run="dying")) == 1.0
    firing = {a.rule for a in state.firing}
    alarms = {
        dict(pairs)["alarm"]
        for n, pairs in values
        if n == "lldscope_alarm" and ("run", "dying") in pairs
    }
    assert alarms == firing
    assert of("lldscope_last_step", run="dying") == [139.0]
    with lldscope.open_run(root / "dying") as run:
        entropy = run.signals()["entropy"].iloc[-1]
    assert of("lldscope_signal", run="dying", signal="entropy") == [pytest.approx(entropy)]
    assert of("lldscope_evidence_limit", run="dying") == [state.arl]
    (at,) = of("lldscope_last_row_timestamp_seconds", run="dying")
    assert at == pytest.approx(time.time(), abs=3600)
    assert of("lldscope_unreadable", path="broken") == [1.0]
    assert of("lldscope_live", path="odd") == [0.0]

    alarm = state.firing[0]
    write_note(root / "dying", "acknowledge", alarm.rule, alarm.episodes[-1][0])
    again = RunRegistry(root)
    quiet = scraped(make_app(again).server.test_client().get("/metrics").text)
    assert any(("quiet", "yes") in pairs and ("alarm", alarm.rule) in pairs for _, pairs in quiet)


def test_rules_and_dashboard_name_metrics_that_there_are() -> None:
    metrics = set(routes._METRICS)
    (group,) = yaml.safe_load((DOCS / "rules.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]:
        assert set(re.findall(r"lldscope_\w+", rule["expr"])) <= metrics
        assert rule["labels"]["severity"] in ("critical", "warning")
    board = json.loads((DOCS / "grafana.json").read_text("utf-8"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert panel["targets"]
        for target in panel["targets"]:
            names = set(re.findall(r"lldscope_\w+", target["expr"]))
            assert names
            assert names <= metrics
            for signal in re.findall(r'signal="(\w+)"', target["expr"]):
                assert signal in LAST
    (job,) = yaml.safe_load((DOCS / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    assert job["job_name"] == "lldscope"


def test_what_a_terminal_would_obey_is_not_in_the_metrics(tmp_path: Path) -> None:
    name = "a\x1b]52;c;aGFja2Vk\x07b\x1b]8;;http://evil\x1b\\c\u202ed\x9b31m\u2066e\x00"
    with lldscope.Recorder(tmp_path / "odd", name=name) as recorder:
        recorder.step(step=0, n_responses=1, reward_sum=1.0)
    text = make_app(RunRegistry(tmp_path)).server.test_client().get("/metrics").text
    assert 'run="a' in text
    assert not [c for c in text if c != "\n" and is_invisible(c)]
    assert "aGFja2Vk" not in text


@pytest.mark.engine
def test_rules_and_configuration_are_valid_and_fire_after_their_time(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("Debian's Prometheus is not on this machine: promtool is missing")
    for kind, file in (("rules", "rules.yml"), ("config", "prometheus.yml")):
        done = subprocess.run(
            [promtool, "check", kind, DOCS / file], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    alarm = 'lldscope_alarm{run="r", path="r", alarm="lld-decay", severity="critical", quiet="%s"}'
    about = {"run": "r", "path": "r", "alarm": "lld-decay"}
    alert = {"exp_labels": about | {"severity": "critical", "quiet": "no"},
             "exp_annotations": {"summary": "lld-decay in r"}}
    last = 'lldscope_last_row_timestamp_seconds{run="r", path="r"}'
    summary = "r has recorded no step for half an hour"
    silent = {
        "exp_labels": {"run": "r", "path": "r", "severity": "warning"},
        "exp_annotations": {"summary": summary},
    }
    checks = [
        (alarm % "no", "1x10", "30s", "LldscopeCritical", []),
        (alarm % "no", "1x10", "2m", "LldscopeCritical", [alert]),
        (alarm % "yes", "1x10", "2m", "LldscopeCritical", []),
        (last, "0x100", "20m", "LldscopeSilent", []),
        (last, "0x100", "40m", "LldscopeSilent", [silent]),
    ]
    tests = [
        {
            "interval": "30s",
            "input_series": [
                {"series": series, "values": values},
                {"series": 'lldscope_live{run="r", path="r"}', "values": "1x100"},
            ],
            "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": expected}],
        }
        for series, values, at, name, expected in checks
    ]
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(DOCS / "rules.yml")], "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
