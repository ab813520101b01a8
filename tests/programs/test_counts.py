"""How often rules fire in runs that held, as their pages repeat it, is what the banks say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lldscope.diagnosis.registry import RULES
from lldscope.diagnosis.rule import FIRED, fired_wrongly
from lldscope.evaluation.scoring import ANY
from study.counts import counts

SAMPLES = Path(__file__).parents[2] / "sample_runs"


@pytest.mark.slow
def test_rules_name_the_false_alarms_that_are_counted_on_the_alarm_bank(lldscope_command):
    result = counts()
    assert result == FIRED
    evaluated = json.loads(
        lldscope_command("evaluate", SAMPLES / "alarm_bank", "--split", "all", "--json").stdout
    )
    rates = {r["rule"]: r["fired"]["held"][0] for r in evaluated["rules"] if r["rule"] not in ANY}
    assert {rule: rates[rule] for rule in result} == {r: fired for r, (fired, _) in result.items()}
    texts = {rule.id: rule.false_alarms for rule in RULES}
    count, runs = result["entropy-surge"]
    assert (
        texts["entropy-surge"]
        == f"fired in {count} of {runs} runs of the tiny policy whose held-out score held"
    )
    assert fired_wrongly("a-new-rule") == "not counted yet"
