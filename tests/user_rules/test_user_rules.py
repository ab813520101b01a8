"""Rules written by the user: what is refused, what a query answers, and how a file is tested."""

from __future__ import annotations

import json
import logging
import math

import numpy as np
import pandas as pd
import pytest
from made_up_runs import write_run
from rule_cases import frame

from lldscope.cli.rules import RULES_SCHEMA
from lldscope.core.errors import UsageError
from lldscope.core.schema import SIGNALS
from lldscope.diagnosis.assess import assess
from lldscope.diagnosis.registry import RULES
from lldscope.user_rules import user_rules
from lldscope.user_rules.user_rules import RuleQuery, load, looks_ahead

FILE = """
[[rule]]
id = "long-answers"
severity = "warning"
query = '''
SELECT step, avg(response_tokens) OVER (ORDER BY step ROWS 4 PRECEDING) AS value FROM signals
QUALIFY value > 1.5 * median(response_tokens)
  OVER (ORDER BY step ROWS BETWEEN 50 PRECEDING AND 5 PRECEDING)
'''
unit = "tokens"
for_steps = 3
clear_steps = 10
message = "responses are half as long again as they were"
advice = "Look at samples for repetition."
"""


@pytest.fixture
def rule_file(tmp_path):
    def write(text: str = FILE, name: str = "mine.toml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def with_query(query: str) -> str:
    """The file's rule with another query."""
    start, end = FILE.index("query"), FILE.index("unit")
    return f"{FILE[:start]}query = '''{query}'''\n{FILE[end:]}"


def noise(steps: int, seed: int = 0) -> pd.DataFrame:
    """Every signal as noise, a tenth of it not measured."""
    rng = np.random.default_rng(seed)
    table = {name: rng.normal(0, 1, steps) for name in SIGNALS.names}
    for values in table.values():
        values[rng.random(steps) < 0.1] = np.nan
    return pd.DataFrame({**table, "step": np.arange(steps)})


def test_a_missing_measurement_meets_no_condition():
    signals = frame({"reward": np.array([0.0, np.nan, 1.0])})
    for condition, steps in {
        "reward < 0.5": [0], "NOT reward < 0.5": [2], "reward IS NULL": [1], "kl > 0": [],
    }.items():
        assert [*RuleQuery(f"SELECT step FROM signals WHERE {condition}")(signals)] == steps
    (value,) = RuleQuery("SELECT step, kl AS value FROM signals LIMIT 1")(signals).values()
    assert math.isnan(value)


# That a query can only read is tested with `lldscope query`, which runs it by the same means.
REFUSED = {
    "": "exactly one SELECT",
    "COPY signals TO 'x'": "exactly one SELECT",
    "SELECT step FROM signals; DROP TABLE signals": "exactly one SELECT",
    "WITH x AS (COPY (SELECT 1) TO 'x') SELECT step FROM signals": "exactly one SELECT",
    "SELECT kl AS step FROM query('SELECT 1')": "query runs a text",
    "SELECT content AS step FROM read_text('/etc/hostname')": "disabled by configuration",
    "SELECT size AS step FROM secret": "secret does not exist",
    "SELECT step FROM signals WHERE rewrd > 1": 'Referenced column "rewrd" not found',
    "SELECT step FROM signals WHERE": "syntax error",
    "SELECT reward FROM signals": "must return `step`",
    "SELECT step, reward FROM signals": "must return `step`",
    "SELECT step FROM signals WHERE step > 3": "looks at no signal",
    "SELECT step FROM signals WHERE " + "abs(" * 3000 + "kl" + ")" * 3000: "nested|depth",
}


@pytest.mark.parametrize("query", REFUSED)
def test_queries_that_are_refused(query, rule_file):
    secret = pd.DataFrame({"size": [42]})  # noqa: F841  a query must not see it
    with pytest.raises(UsageError, match=REFUSED[query]):
        load(rule_file(with_query(query)))


def test_a_query_that_takes_long_is_stopped(monkeypatch):
    slow = RuleQuery("SELECT step FROM signals QUALIFY median(kl + step) OVER (ORDER BY step) > 1")
    monkeypatch.setattr(user_rules, "QUERY_SECONDS", 0.2)
    columns = dict.fromkeys(SIGNALS.names, np.full(1_000_000, np.nan))
    with pytest.raises(UsageError, match="took longer than"):
        slow({**columns, "step": np.arange(1e6), "kl": np.arange(1e6)})


def test_looking_ahead_is_detected_from_the_answers():
    signals = noise(60)
    for condition, ahead in {
        "WHERE reward > 0": False,
        "QUALIFY avg(kl) OVER (ORDER BY step ROWS 5 PRECEDING) > 0": False,
        "QUALIFY lead(reward) OVER (ORDER BY step) > 0": True,
        "QUALIFY reward > avg(reward) OVER ()": True,
        "WHERE reward > random()": True,
    }.items():
        query = RuleQuery(f"SELECT step, reward AS value FROM signals {condition}")
        assert (looks_ahead(query, signals) is not None) == ahead, condition


def test_for_and_clear_are_counted_in_steps(rule_file):
    text = with_query("SELECT step FROM signals WHERE kl > 1").replace(
        "for_steps = 3", "for_steps = 4"
    )
    rules = load(rule_file(text.replace("clear_steps = 10", "clear_steps = 2")))
    kl = np.zeros(40)
    kl[10:13] = 2  # three steps: too short
    kl[20:30] = 2
    kl[25] = 0  # one step below does not end it
    (alert,) = assess(frame({"kl": kl}), rules=[*rules]).alerts
    assert alert.episodes == ((23, 31),)


def test_a_rule_that_cannot_be_evaluated_is_logged_and_affects_no_other(rule_file, caplog):
    text = with_query("SELECT step FROM signals WHERE CAST(kl AS TINYINT) > 9")
    signals = frame({"kl": np.array([1.0, 1e9, 1.0]), "n_nonfinite": np.ones(3)})
    with caplog.at_level(logging.WARNING, "lldscope"):
        alarms = {a.rule for a in assess(signals, rules=[*RULES, *load(rule_file(text))]).alerts}
    assert "nonfinite" in alarms
    assert "long-answers" not in alarms
    assert len(caplog.records) == 1
    assert "out of range" in caplog.text


WRONG = {
    ("id = \"long-answers\"", 'id = "truncation"'): "with this id",
    ("id = \"long-answers\"", 'id = "Long answers"'): "an id is made of",
    ('severity = "warning"', 'severity = "bad"'): "one of info, warning, critical",
    ('unit = "tokens"', 'units = "tokens"'): "`units` is unknown",
    ("for_steps = 3", "for_steps = 0"): "must be 1 or more",
    ("for_steps = 3", "for_steps = 2.5"): "must be a whole number",
    ("for_steps = 3", "for_steps = true"): "must be a whole number",
    ('advice = "Look', '# advice = "Look'): "`advice` is missing",
    ("avg(response_tokens)", "avg(tokens)"): "column tokens not found",
    ("[[rule]]", "[rule]"): "two brackets",
    ("[[rule]]", "[[rules]]"): "two brackets",
    ("[[rule]]", "[[rule]"): "not TOML",
}


@pytest.mark.parametrize("change", WRONG, ids=[new for _, new in WRONG])
def test_errors_name_the_file_the_rule_and_the_error(rule_file, change):
    assert change[0] in FILE
    path = rule_file(FILE.replace(*change))
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert WRONG[change] in str(caught.value)


# -- the command -----------------------------------------------------------------------------------


def test_rules_test_shows_where_rules_fire_and_fails_for_those_that_look_ahead(
    lldscope_command, rule_file, tmp_path
):
    run = write_run(tmp_path / "run", 40)
    done = lldscope_command("rules", "test", rule_file(), run)
    assert done.returncode == 0, done.stderr
    assert "quiet" in done.stdout
    late = rule_file(with_query("SELECT step FROM signals WHERE step > 20 AND reward >= 0"))
    answer = json.loads(lldscope_command("rules", "test", late, run, "--json").stdout)
    assert answer == {
        "schema": RULES_SCHEMA,
        "rules": ["long-answers"],
        "results": [
            {"rule": "long-answers", "run": str(run), "episodes": [[23, None]], "error": None}
        ],
    }
    last = "SELECT step FROM signals WHERE reward >= 0 QUALIFY step = max(step) OVER ()"
    ahead = rule_file(with_query(last))
    done = lldscope_command("rules", "test", ahead, run)
    assert done.returncode == 1
    assert "looks at later steps" in done.stdout
    assert lldscope_command("rules", "test", rule_file("rule = 1")).returncode == 2


def test_check_raises_alarms_by_the_users_rules(lldscope_command, rule_file, tmp_path):
    run = write_run(tmp_path / "run", 40)
    text = with_query("SELECT step FROM signals WHERE step > 20 AND reward >= 0")
    done = lldscope_command(
        "check", run, "--json", "--rules", rule_file(text.replace("warning", "critical"))
    )
    assert done.returncode == 11, done.stderr
    (alert,) = [a for a in json.loads(done.stdout)["alerts"] if a["rule"] == "long-answers"]
    assert (alert["step"], alert["state"]) == (23, "firing")
    assert lldscope_command("check", run).returncode == 0
    missing = lldscope_command("check", run, "--rules", tmp_path / "none.toml")
    assert missing.returncode == 1
    assert "none.toml" in missing.stderr
