"""How often rules fire in runs that held, as their pages repeat it, is what the banks say."""

from __future__ import annotations

import pytest

from lldscope.diagnosis.registry import RULES
from lldscope.diagnosis.rule import FIRED, fired_wrongly
from study.counts import counts


@pytest.mark.slow
def test_rules_name_the_false_alarms_that_are_counted_on_the_alarm_bank():
    result = counts()
    assert result == FIRED
    texts = {rule.id: rule.false_alarms for rule in RULES}
    count, runs = result["entropy-surge"]
    assert (
        texts["entropy-surge"]
        == f"fired in {count} of {runs} runs of the tiny policy whose held-out score held"
    )
    assert fired_wrongly("a-new-rule") == "not counted yet"
