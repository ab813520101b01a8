"""Rules written by the user: what is refused, that they are causal, and how a file is tested."""

from __future__ import annotations

import json
import logging

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_runs import write_run

from lldscope.cli.rules import RULES_SCHEMA
from lldscope.core.errors import UsageError
from lldscope.core.schema import SIGNALS
from lldscope.diagnosis.assess import assess
from lldscope.diagnosis.registry import RULES
from lldscope.user_rules import rule_sql
from lldscope.user_rules.rule_cases import Case, drawn, frame, looks_ahead, results
from lldscope.user_rules.rule_sql import BadExpression, Expressions
from lldscope.user_rules.user_rules import load

FILE = """
[[rule]]
id = "long-answers"
severity = "warning"
condition = '''
avg(response_tokens) OVER (ORDER BY step ROWS 4 PRECEDING)
  > 1.5 * median(response_tokens) OVER (ORDER BY step ROWS BETWEEN 50 PRECEDING AND 5 PRECEDING)
'''
value = "avg(response_tokens) OVER (ORDER BY step ROWS 4 PRECEDING)"
unit = "tokens"
for_steps = 3
clear_steps = 10
message = "responses are half as long again as they were"
advice = "Look at samples for repetition."

[[case]]
name = "responses grow"
signals = { response_tokens = [[0, 100], [80, 100], [90, 200], [120, 200]] }
noise = { response_tokens = 5 }
fires = { long-answers = [85, 100] }
quiet = ["truncation"]

[[case]]
name = "responses stay as long as they were"
signals = { response_tokens = [[0, 100], [200, 100]] }
noise = { response_tokens = 10 }
quiet = ["long-answers"]
"""


@pytest.fixture
def rule_file(tmp_path):
    def write(text: str = FILE, name: str = "mine.toml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def one_rule(condition: str) -> str:
    """The file's rule alone, with another condition and no value."""
    rule = FILE.split("[[case]]")[0]
    start, end = rule.index("condition"), rule.index("unit")
    return f"{rule[:start]}condition = '{condition}'\n{rule[end:]}"


def noise(steps: int, seed: int = 0) -> pd.DataFrame:
    """Every signal as noise, a tenth of it not measured."""
    rng = np.random.default_rng(seed)
    table = {name: rng.normal(0, 1, steps) for name in SIGNALS.names}
    for values in table.values():
        values[rng.random(steps) < 0.1] = np.nan
    return pd.DataFrame({**table, "step": np.arange(steps)})


def test_an_expression_agrees_with_pandas():
    signals = noise(300)
    holds, value = Expressions(
        "avg(reward) OVER (ORDER BY step ROWS 9 PRECEDING) < 0.1 AND kl > lag(kl, 2) OVER "
        "(ORDER BY step)",
        "reward - entropy",
    ).rows(signals)
    slow = []
    for t in range(len(signals)):
        window = [r for r in signals["reward"][max(0, t - 9) : t + 1] if r == r]
        before = signals["kl"][t - 2] if t >= 2 else np.nan
        low = bool(window) and sum(window) / len(window) < 0.1
        slow.append(low and bool(signals["kl"][t] > before))
    assert holds.tolist() == slow
    assert 0 < holds.sum() < len(signals)
    np.testing.assert_array_equal(value, signals["reward"] - signals["entropy"])


def test_a_missing_measurement_meets_no_condition():
    signals = frame({"reward": np.array([0.0, np.nan, 1.0])})
    assert Expressions("reward < 0.5", None).rows(signals)[0].tolist() == [True, False, False]
    assert Expressions("NOT reward < 0.5", None).rows(signals)[0].tolist() == [False, False, True]
    assert Expressions("reward IS NULL", None).rows(signals)[0].tolist() == [False, True, False]
    assert Expressions("kl > 0", "kl").rows(signals)[0].tolist() == [False] * 3


CAUSAL = [
    "reward < 0.1",
    "max(reward) OVER (ORDER BY step) > 2",
    "median(grad_norm) OVER (ORDER BY step ROWS BETWEEN 30 PRECEDING AND 1 PRECEDING) < grad_norm",
    "sum(kl) OVER (ORDER BY step RANGE BETWEEN 5 PRECEDING AND CURRENT ROW EXCLUDE CURRENT ROW) >1",
    "avg(kl) FILTER (WHERE reward > 0) OVER (PARTITION BY step % 2 ORDER BY step) > 0",
    "last_value(kl IGNORE NULLS) OVER (ORDER BY step) > nth_value(kl, 3) OVER (ORDER BY step)",
    "lag(reward, 5) OVER (ORDER BY step) / nullif(reward, 0) > 2 -- with a remark",
    "CASE WHEN row_number() OVER (ORDER BY step) > 20 THEN abs(kl) > 1 ELSE false END",
    "coalesce(kl, reward) BETWEEN -1 AND 0 OR greatest(kl, 1) IN (1, 2) OR isnan(entropy)",
]


@pytest.mark.parametrize("condition", CAUSAL)
@settings(max_examples=20)
@given(cut=st.integers(1, 120), seed=st.integers(0, 5))
def test_the_answer_for_a_step_uses_no_later_step(condition, cut, seed):
    signals = noise(120, seed)
    expressions = Expressions(condition, "reward")
    complete = expressions.rows(signals)[0]
    part = expressions.rows(signals.iloc[:cut])[0]
    assert part.tolist() == complete[:cut].tolist()


REFUSED = {
    "lead(reward) OVER (ORDER BY step) > 1": "lead looks at later steps",
    "lag(reward, -1) OVER (ORDER BY step) > 1": "second argument of lag",
    "lag(reward, step) OVER (ORDER BY step) > 1": "second argument of lag",
    "fill(reward) OVER (ORDER BY step) > 1": "fill looks at later steps",
    "ntile(4) OVER (ORDER BY step) > 3": "ntile looks at later steps",
    "percent_rank() OVER (ORDER BY step) > 0.5": "percent_rank looks at later steps",
    "avg(reward) > 1": "avg needs a window",
    "avg(reward) OVER () > 1": "must say ORDER BY step",
    "avg(reward) OVER (ORDER BY step DESC) > 1": "must say ORDER BY step",
    "avg(reward) OVER (ORDER BY reward) > 1": "must say ORDER BY step",
    "avg(kl) OVER (ORDER BY step ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) > 1": "later steps",
    "avg(kl) OVER (ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) > 1": "later",
    "sum(kl) OVER (ORDER BY step ROWS BETWEEN 5 PRECEDING AND -3 PRECEDING) > 1": "later steps",
    "random() > 0.5": "random is no function",
    "now() IS NULL": "now is no function",
    "current_setting('threads') = '1'": "current_setting is no function",
    "read_text('/etc/passwd') IS NULL": "read_text is no function",
    "sleep_ms(10000) > 1": "sleep_ms is no function",
    "repeat('x', 4000000000) > 'a'": "repeat is no function",
    "(SELECT true)": "a sub-select is not allowed",
    "EXISTS (FROM read_csv('/etc/passwd'))": "a sub-select is not allowed",
    "kl IN (FROM signals SELECT kl)": "a sub-select is not allowed",
    "true; DROP TABLE signals": "syntax error",
    "true) FROM signals WHERE (true": "one expression, nothing before or after",
    "true), (false": "one expression, nothing before or after",
    "true ORDER BY step": "syntax error",
    "COPY signals TO 'x'": "syntax error",
    "reward > $1": "one expression",
    "COLUMNS(*) > 1": "a star is not allowed",
    "reward >": "syntax error",
    "1 = 1 /*": "unterminated",
    "": "it is empty",
    "reward": "of type DOUBLE, not true or false",
    "rewrd > 1": "there is no signal rewrd",
    "signals.reward > 1": "there is no signal signals.reward",
    "reward > 'high'": "high",
    "reward > " + "abs(" * 600 + "kl" + ")" * 600: "nested too deeply",
    "reward > " + "abs(" * 3000 + "kl" + ")" * 3000: "nested too deeply|expression depth",
    "write_log('x') IS NULL": "write_log is no function",
    "json_serialize_plan('SELECT 1') IS NULL": "json_serialize_plan is no function",
}


@pytest.mark.parametrize("condition", REFUSED)
def test_conditions_that_are_refused(condition):
    with pytest.raises(BadExpression, match=REFUSED[condition].replace("(", r"\(")):
        Expressions(condition, None).rows(noise(5))


def test_the_database_behind_the_rules_reaches_nothing(tmp_path):
    """A second wall, should the first let something through."""
    secret = 42  # noqa: F841  a query must not find it
    outside = tmp_path / "x"
    for sql in (
        "FROM read_text('/etc/hostname')",
        f"COPY (SELECT 1) TO '{outside}'",
        f"ATTACH '{outside}' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "FROM read_csv('https://localhost/x.csv')",
        "FROM secret",
    ):
        with pytest.raises(duckdb.Error):
            rule_sql._database().execute(sql).fetchall()
    assert not outside.exists()


def test_an_expression_without_end_is_interrupted(monkeypatch):
    monkeypatch.setattr(rule_sql, "EVALUATE_SECONDS", 0.2)
    slow = Expressions("median(kl + step) OVER (ORDER BY step) > reward", None)
    with pytest.raises(BadExpression, match="more than"):
        slow.rows(pd.DataFrame({name: np.arange(1e6) for name in ("step", "kl", "reward")}))
    assert slow.rows(noise(10))[0].shape == (10,)  # the next evaluation is not harmed


def test_looking_ahead_is_detected_from_the_values_too():
    """What the syntax should have refused: a stand-in that looks one row ahead."""

    class Ahead:
        def rows(self, signals):
            later = signals["reward"].shift(-1).fillna(0).to_numpy()
            return later > 0, later

    signals = noise(60)
    cut = looks_ahead(Ahead(), signals)
    assert cut is not None
    assert cut < 60
    assert looks_ahead(Expressions("reward > 0", "reward"), signals) is None


def test_a_users_rule_fires_like_a_built_in_one(rule_file):
    declared = load([rule_file()])
    (user,) = declared.rules
    alerts = assess(drawn(declared.cases[0], 0), rules=[*RULES, user.rule]).alerts
    alert = next(a for a in alerts if a.rule == "long-answers")
    assert alert.severity == "warning"
    assert alert.state == "firing"
    assert 85 <= alert.step <= 100
    assert alert.value > 150
    assert alert.message.startswith("responses are half as long again as they were: 1")
    assert alert.message.endswith(" tokens")
    assert "no false-alarm rate" in alert.false_alarms


def test_for_and_clear_are_counted_in_steps(rule_file):
    text = one_rule("kl > 1").replace("for_steps = 3", "for_steps = 4")
    text = text.replace("clear_steps = 10", "clear_steps = 2")
    (user,) = load([rule_file(text)]).rules
    kl = np.zeros(40)
    kl[10:13] = 2  # three steps: too short
    kl[20:30] = 2
    kl[25] = 0  # one step below does not end it
    (alert,) = assess(frame({"kl": kl}), rules=[user.rule]).alerts
    assert alert.episodes == ((23, 31),)


def test_a_rule_that_cannot_be_evaluated_is_logged_and_affects_no_other(rule_file, caplog):
    (user,) = load([rule_file(one_rule("CAST(kl AS TINYINT) > 9"))]).rules
    signals = frame({"kl": np.array([1.0, 1e9, 1.0]), "n_nonfinite": np.ones(3)})
    with caplog.at_level(logging.WARNING, "lldscope"):
        fired = {a.rule for a in assess(signals, rules=[*RULES, user.rule]).alerts}
    assert "nonfinite" in fired
    assert "long-answers" not in fired
    assert len(caplog.records) == 1
    assert "out of range" in caplog.text
    assert user.failures


WRONG = {
    ("id = \"long-answers\"", 'id = "truncation"'): "built-in rule",
    ("id = \"long-answers\"", 'id = "Long answers"'): "an id is made of",
    ('severity = "warning"', 'severity = "bad"'): "one of info, warning, critical",
    ('unit = "tokens"', 'units = "tokens"'): "do you mean `unit`",
    ("for_steps = 3", "for_steps = 0"): "must be 1 or more",
    ("for_steps = 3", "for_steps = 2.5"): "must be a whole number",
    ("for_steps = 3", "for_steps = true"): "must be a whole number",
    ('advice = "Look', '# advice = "Look'): "`advice` is missing",
    ("avg(response_tokens)", "avg(tokens)"): "there is no signal tokens",
    ("[[rule]]", "[rule]"): "two brackets",
    ("[[rule]]", "[[rules]]"): "`rules` is unknown",
    ("[[rule]]", "[[rule]"): "not TOML",
    ("fires = { long-answers", "fires = { long-answer"): "no rule 'long-answer'",
    ("[85, 100]", "[85]"): "earliest step, latest step",
    ("[[0, 100], [200, 100]]", "[[0, 100], [0, 100]]"): "steps rising",
    ("noise = { response_tokens = 5 }", "noise = { tokens = 5 }"): "no signal `tokens`",
    ('quiet = ["long-answers"]', ""): "neither what `fires`",
}  # fmt: skip


@pytest.mark.parametrize("change", WRONG, ids=[new for _, new in WRONG])
def test_errors_name_the_file_the_rule_and_the_error(rule_file, change):
    assert change[0] in FILE
    path = rule_file(FILE.replace(*change))
    with pytest.raises(UsageError) as caught:
        load([path])
    assert str(path) in str(caught.value)
    assert WRONG[change] in str(caught.value)


def test_cases_may_be_in_another_file(rule_file):
    rules, cases = FILE.split("[[case]]", 1)
    declared = load([rule_file(f"[[case]]{cases}", "cases.toml"), rule_file(rules)])
    assert [u.rule.id for u in declared.rules] == ["long-answers"]
    assert len(declared.cases) == 2
    with pytest.raises(UsageError, match="two rules with this id"):
        load([rule_file(rules), rule_file(rules, "again.toml")])


def test_a_case_whose_expectations_are_not_met_fails():
    case = Case(
        "loud",
        {"n_nonfinite": [[0, 0], [9, 0], [10, 1], [20, 1]]},
        fires={"nonfinite": [0, 5], "truncation": [0, 20]},
        quiet=["nonfinite"],
    )
    outcome = results(case, RULES)
    assert [(r.rule, r.expected, r.found, r.passed) for r in outcome] == [
        ("nonfinite", "fires 0–5", "at 10, 10, 10", False),
        ("truncation", "fires 0–20", "quiet", False),
        ("nonfinite", "quiet", "at 10, 10, 10", False),
    ]


# -- the command -----------------------------------------------------------------------------------


def test_rules_test_passes_fails_and_says_what_is_untested(lldscope_command, rule_file, tmp_path):
    path = rule_file()
    run = write_run(tmp_path / "run", 40)
    done = lldscope_command("rules", "test", path, "--run", run)
    assert done.returncode == 0, done.stderr
    assert "ok" in done.stdout
    assert "FAILED" not in done.stdout
    assert f"{run}" in done.stdout
    wrong = rule_file(FILE.replace("[85, 100]", "[10, 20]"), "wrong.toml")
    done = lldscope_command("rules", "test", wrong, "--json")
    outcome = json.loads(done.stdout)
    assert done.returncode == 1
    assert outcome["schema"] == RULES_SCHEMA
    assert outcome["rules"] == ["long-answers"]
    assert outcome["passed"] is False
    assert [r["passed"] for r in outcome["results"]] == [False, True, True]
    untested = rule_file(FILE.split("[[case]]")[0], "untested.toml")
    done = lldscope_command("rules", "test", untested)
    assert done.returncode == 0
    assert "no case says when long-answers fires" in done.stderr
    assert lldscope_command("rules", "test", rule_file("rule = 1")).returncode == 2


def test_rules_list_has_every_rule(lldscope_command, rule_file):
    outcome = json.loads(lldscope_command("rules", "list", rule_file(), "--json").stdout)
    assert [r["id"] for r in outcome["rules"]] == [*(r.id for r in RULES), "long-answers"]
    assert "long-answers" in lldscope_command("rules", "list", rule_file()).stdout


def test_check_raises_alarms_by_the_users_rules(lldscope_command, rule_file, tmp_path):
    run = write_run(tmp_path / "run", 40)
    text = one_rule("step > 20 AND reward >= 0").replace("warning", "critical")
    done = lldscope_command("check", run, "--json", "--rules", rule_file(text))
    assert done.returncode == 11, done.stderr
    (alert,) = [a for a in json.loads(done.stdout)["alerts"] if a["rule"] == "long-answers"]
    assert (alert["step"], alert["state"]) == (23, "firing")
    assert lldscope_command("check", run).returncode == 0
    missing = lldscope_command("check", run, "--rules", tmp_path / "none.toml")
    assert missing.returncode == 1
    assert "none.toml" in missing.stderr
