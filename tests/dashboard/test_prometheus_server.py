"""docs/prometheus with Debian's Prometheus and Alertmanager: from a run to an alert."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml
from bench.page import free_port
from browsing import TOKEN, served
from made_up_runs import write_run

import lldscope

DOCS = Path(__file__).parents[2] / "docs" / "prometheus"
pytestmark = pytest.mark.engine
LIMIT = 180.0  # seconds for anything; a loaded machine is slow
VERDICTS = "lldscope_verdict == 1"


def queries(panels: list[dict[str, Any]]) -> list[str]:
    return [target["expr"] for panel in panels for target in panel["targets"]]


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"Debian's Prometheus is not on this machine: {name} is missing")
    return path


def test_rules_and_configuration_are_valid_and_fire_after_their_time(tmp_path: Path) -> None:
    promtool = program("promtool")
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


def fetch(address: str) -> Any:
    with urlopen(address, timeout=LIMIT) as answer:
        return json.load(answer)


def awaited(look: Callable[[], Any]) -> Any:
    """What `look` finds, once it finds anything."""
    end = time.monotonic() + LIMIT
    while True:
        try:
            if result := look():
                return result
        except OSError:  # it does not listen yet
            pass
        assert time.monotonic() < end, "it never came"
        time.sleep(0.2)


@contextmanager
def running(*command: str | Path) -> Iterator[None]:
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def test_an_alarm_of_a_run_reaches_alertmanager_and_every_query_is_answered(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    prometheus, alertmanager = program("prometheus"), program("prometheus-alertmanager")
    root = tmp_path / "runs"
    write_run(root / "dying", 140, dies=True)
    with lldscope.Recorder(root / "odd", name='a "b"\\\nc {x="y"}') as recorder:
        recorder.step(step=0, n_responses=1, reward_sum=1.0)
    rules = yaml.safe_load((DOCS / "rules.yml").read_text())
    for rule in rules["groups"][0]["rules"]:
        rule["for"] = "0s"
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    receiver = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(receiver))
    here, there = free_port(), free_port()
    with ExitStack() as stack:
        address = stack.enter_context(served(root, tmp_path_factory.mktemp("cache")))
        config = yaml.safe_load((DOCS / "prometheus.yml").read_text())
        (job,) = config["scrape_configs"]
        job |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
        job["authorization"] = {"credentials": TOKEN}
        job["static_configs"] = [{"targets": [address.removeprefix("http://")]}]
        config["alerting"]["alertmanagers"][0]["static_configs"] = [
            {"targets": [f"127.0.0.1:{there}"]}
        ]
        config["global"] = {"evaluation_interval": "1s"}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        stack.enter_context(running(
            alertmanager, f"--config.file={tmp_path / 'alertmanager.yml'}",
            f"--storage.path={tmp_path / 'am'}", f"--web.listen-address=127.0.0.1:{there}",
            "--cluster.listen-address=",
        ))
        stack.enter_context(running(
            prometheus, f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address=127.0.0.1:{here}",
        ))

        def answered(query: str) -> list[Any]:
            answer = fetch(f"http://127.0.0.1:{here}/api/v1/query?query={quote(query)}")
            assert answer["status"] == "success"
            return list(answer["data"]["result"])

        verdicts = awaited(lambda: len(result := answered(VERDICTS)) == 2 and result)
        assert {result["metric"]["run"] for result in verdicts} == {"dying", 'a "b"\\ c {x="y"}'}
        alerts = awaited(lambda: [
            a for a in fetch(f"http://127.0.0.1:{there}/api/v2/alerts")
            if a["labels"]["alertname"] == "LldscopeCritical"
        ])
        assert {a["labels"]["run"] for a in alerts} == {"dying"}
        assert any(a["annotations"]["summary"] == "lld-collapse in dying" for a in alerts)
        board = json.loads((DOCS / "grafana.json").read_text("utf-8"))
        results = [answered(query.replace("$run", ".*")) for query in queries(board["panels"])]
        assert len(results) == len(queries(board["panels"])) >= 10
        # nothing is live here; all else has values
        assert [bool(result) for result in results] == [
            "lldscope_live" not in query for query in queries(board["panels"])
        ]
