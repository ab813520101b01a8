"""docs/alerting.md: its rule fires, its fields are those sent."""

from __future__ import annotations

import re
from pathlib import Path

from rule_cases import simulate

from lldscope.cli.watch import STATUS
from lldscope.diagnosis.assess import assess
from lldscope.user_rules.user_rules import load

PAGE = (Path(__file__).parents[2] / "docs" / "alerting.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


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
