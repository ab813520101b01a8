"""What pages repeat of the alarms on the alarm bank is what the rules do today."""

from __future__ import annotations

import pytest

from lldscope.diagnosis.registry import RULES
from lldscope.diagnosis.rule import fired_wrongly, tallies
from study.counts import counts
from study.judged import by_alarm
from study.report import RATES


@pytest.mark.slow
def test_rules_name_the_false_alarms_that_are_counted_on_the_alarm_bank():
    result = counts()
    assert result == tallies()
    texts = {rule.id: rule.false_alarms for rule in RULES}
    count, runs = result["entropy-surge"]
    assert (
        texts["entropy-surge"]
        == f"fired in {count} of {runs} runs of the tiny policy whose held-out score held"
    )
    assert fired_wrongly("a-new-rule") == "not counted yet"


@pytest.mark.slow
def test_the_page_of_rates_says_what_the_alarms_do_on_the_alarm_bank():
    """The other blocks need detectors and partial logs as well: `python -m study report`."""
    page = RATES.read_text("utf-8")
    for name, text in by_alarm().items():
        assert f"<!-- {name} -->\n{text}\n<!-- end of {name} -->" in page, name
