"""Rules: their cases, the states of alarms, attribution, and the generated page.

`PYTHONPATH=tests/helpers:. python tests/diagnosis/test_rules.py` writes tests/cases/answers.txt,
what is said of each case. The difference shows what a change of a rule does.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from itertools import groupby
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phase_runs import CASE, CASE_FILES, CASES, recorded_fault
from rule_cases import frame, random_signals, simulate

from lldscope.core.numbers import short
from lldscope.core.schema import SIGNALS
from lldscope.diagnosis.account import Event
from lldscope.diagnosis.assess import Assessment, Judge, assess
from lldscope.diagnosis.registry import LOOK_ALIKES, RULES, STALLED
from lldscope.diagnosis.rule import Rule, Severity, firing
from lldscope.diagnosis.rules.measures import over_former_max, percent
from lldscope.storage.json_files import to_json
from study import arms, bank
from study.arms import CAUSE

ALL_CASES = list(CASE.values())
NAMES = list(CASE)
ANSWERS = CASES / "answers.txt"
RANDOM = 60  # courses drawn, to which no rule was fitted
RECORDED = sorted((CASES / "faults").glob("*.csv"))
SEEDS = [0, pytest.param(1, marks=pytest.mark.slow)]
RULE = {rule.id: rule for rule in RULES}


@cache
def judge_case(index: int, seed: int) -> Assessment:
    """Every fourth case in three looks, as a live run is judged."""
    judge, table = Judge(), simulate(ALL_CASES[index], seed)
    for rows in (25, len(table) // 2, len(table))[-1 if index % 4 else 0 :]:
        result = judge.look(table.iloc[:rows], ALL_CASES[index].get("restarts"))
    return result


# -- cases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(len(ALL_CASES)), ids=NAMES)
@pytest.mark.parametrize("seed", SEEDS)
def test_case(index, seed):
    case, result = ALL_CASES[index], judge_case(index, seed)
    alarms = {a.rule: a.step for a in result.alerts}
    for rule, (earliest, latest) in case.get("fires", {}).items():
        assert rule in alarms, f"{rule} did not fire; {alarms}"
        assert earliest <= alarms[rule] <= latest, f"{rule} fired at {alarms[rule]}"
    assert not set(case.get("quiet", ())) & set(alarms), alarms
    severities = {a.rule: a.severity for a in result.alerts}
    assert severities.items() >= case.get("severity", {}).items()
    phases = [s.phase for s in result.spans()]
    assert not set(case.get("never", ())) & set(phases), phases
    remaining = iter(phases)
    assert all(phase in remaining for phase in case.get("phases", ())), phases
    for name, finding in result.look_alikes().items():
        assert case.get("look_alikes", {}).get(name, finding.answer) == finding.answer, finding
        assert finding.evidence
        assert "nan" not in finding.evidence, finding
    for alert in (*result.alerts, *result.pending):
        assert re.fullmatch(r".*\d.*[^.]", alert.message), "with numbers, without its stop"
        assert "nan" not in alert.message
    if not seed:
        assert answers(result) == written_answers()[case["name"]]


@cache
def judge_random(seed: int) -> Assessment:
    """Every other run in three looks."""
    judge, (table, restarts) = Judge(), random_signals(seed)
    for rows in (len(table) // 3, len(table) // 2, len(table))[-1 if seed % 2 else 0 :]:
        last = table["step"].iloc[rows - 1]
        so_far = {step: kind for step, kind in restarts.items() if step <= last}
        result = judge.look(table.iloc[:rows], so_far, [None, 300][seed % 2])
    return result


@pytest.mark.parametrize("seed", range(RANDOM))
def test_random_courses_are_judged_as_before(seed):
    assert answers(judge_random(seed)) == written_answers()[f"random {seed}"]


def answers(result: Assessment) -> list[str]:
    """What is said of a run, without its words: phases, alarms, beginnings and causes."""
    course, account = result.course, result.account
    lines = [
        ", ".join(f"{s.phase} {s.start_step}" for s in result.spans()),
        f"{result.verdict}, outcome {course.share:.3g} {course.trend} "
        f"{course.rise and [*course.rise]} {course.is_without_effect} {account.sound_step()}",
    ]
    for a in (*result.alerts, *result.pending):
        spans = " ".join(f"{first}-{'' if last is None else last}" for first, last in a.episodes)
        lines.append(f"{a.rule} {a.severity} at {a.step} ({spans or 'pending'}): "
                     f"{a.value:.3g} of {a.threshold:.3g}; {numbers(a.message)}")
    for one in (*account.events, *account.boundaries):
        name, step = (one.rule, one.onset_step) if isinstance(one, Event) else (one.phase, one.step)
        if step is not None:
            lines.append(f"{name} began {one.low} {step} {one.high}")
    if (why := account.explanation) is not None:
        causes = [one and f"{one[1].rule} {one[0]}" for one in (why.cause, why.with_it)]
        lines.append(f"headline {why.alarm.rule} {why.step} {why.is_dated} {why.is_cause} "
                     f"{why.is_late} {causes} {why.restart} {why.decay} {why.sound}")
        lines.append(" ".join(map(str, ("onset", *account.onset(), account.first_sign,
                                        account.likelihood_fell, why.plunge and why.plunge.step))))
    if signs := account.led_to_loss():
        lines.append(f"before the loss {', '.join(f'{a.rule} {step}' for step, a in signs)}")
    for name, finding in result.look_alikes().items():
        if finding.answer != "not_observable":
            lines.append(f"{name} {finding.answer}: {numbers(finding.evidence)}")
    return [*lines, f"computed {digests(result)}"]


def digests(result: Assessment) -> str:
    """A checksum for each room of the arrays that it computed, to three digits, so that no number
    changes unseen."""
    arrays = {("evidence", "gather", "", 0): "".join(digits(tuple(vars(result.last).values())))}
    for i, (key, value) in enumerate(result.last.cache.items()):
        function = key[0]  # or the first letter of a column
        if callable(function) and (text := "".join(digits(value))):
            *_, room = function.__module__.split(".")
            arguments = [argument for argument in key[1] if not isinstance(argument, Rule)]
            arrays[room, function.__qualname__, str(arguments), i] = text
    rooms = groupby(sorted(arrays), key=lambda name: name[0])
    return " ".join(f"{room} {crc32(''.join(arrays[name] for name in names).encode()):08x}"
                    for room, names in rooms)


def digits(value: object) -> Iterator[str]:
    if isinstance(value, np.ndarray):
        off_ties = np.pi * value.astype(float).ravel()  # the last bit of 0.4125 is each processor's
        yield from (f"{round(x, 9) + 0.0:.3g}," for x in off_ties.tolist())
    elif isinstance(value, tuple) or is_dataclass(value):
        for part in value if isinstance(value, tuple) else vars(value).values():
            yield from digits(part)


def numbers(text: str) -> str:
    return " ".join(re.findall(r"\d[\d,.e-]*(?<=\d)", text))


@cache
def written_answers() -> dict[str, list[str]]:
    parts = ANSWERS.read_text("utf-8").strip().split("\n\n")
    return {name: lines for name, *lines in (part.split("\n") for part in parts)}


def write_answers() -> None:
    results = {name: judge_case(index, 0) for index, name in enumerate(NAMES)}
    results |= {path.stem: recorded(path.stem) for path in RECORDED}
    results |= {f"random {seed}": judge_random(seed) for seed in range(RANDOM)}
    ANSWERS.write_text("\n\n".join(
        "\n".join([name, *answers(result)]) for name, result in results.items()) + "\n", "utf-8")


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_every_rule_has_a_case_that_fires_and_one_that_stays_quiet(rule):
    assert any(rule.id in case.get("fires", ()) for case in CASE_FILES[rule.id])
    quiet = [i for i, case in enumerate(ALL_CASES) if rule.id in case.get("quiet", ())]
    observed = [judge_case(i, 0).log.observed for i in quiet]
    could_fire = any(of.intersection(rule.needs) for of in observed)
    assert could_fire, "quiet only where it could not have fired"


# Alarms of what happens at a step, and of tests that begin anew; the others are of a state.
OF_EVENTS = {
    "lld-stagnation", "lld-decay", "reward-parsing", "nonfinite", "lr-jump", "score-flat",
}


@pytest.mark.parametrize("rule", sorted(set(RULE) - OF_EVENTS))
def test_an_alarm_lasts_as_long_as_the_state_that_it_saw(rule):
    """However long that is: it does not become the usual."""
    cases = [case for case in CASE_FILES[rule] if rule in case.get("fires", ())]
    assert any(stays(case, rule) for case in cases)


def stays(case: dict, rule: str) -> bool:
    """Whether an alarm is the same 500 steps after the end of a case, if nothing changes then."""
    end = max(points[-1][0] for points in case["signals"].values()) + 500
    signals = {name: [*points, [end, points[-1][1]]] for name, points in case["signals"].items()}
    alerts = assess(simulate(case | {"signals": signals}, 0), restarts=case.get("restarts")).alerts
    return any(a.rule == rule and len(a.episodes) == 1 and a.state == "firing" for a in alerts)


def test_cases_name_existing_rules_and_look_alikes():
    for case in ALL_CASES:
        assert {*case.get("fires", ()), *case.get("quiet", ())} <= set(RULE), case["name"]
        assert set(case.get("look_alikes", ())) <= set(LOOK_ALIKES), case["name"]
    assert len(ALL_CASES) == sum(map(len, CASE_FILES.values())), "no two cases have the same name"
    assert set(CASE_FILES) == {*RULE, "healthy"}


# -- recorded runs --------------------------------------------------------------------------------


@cache
def recorded(name: str) -> Assessment:
    return assess(recorded_fault(name))


@pytest.mark.parametrize("fault", CAUSE)
def test_a_real_fault_is_named_and_lld_is_not(fault):
    result = recorded(fault)
    findings = result.look_alikes()
    causes = [name for name, finding in findings.items() if finding.answer == "supported"]
    assert causes == [CAUSE[fault]], findings
    assert findings["lld"].answer in ("ruled_out", "not_shown")
    alarms = {a.rule: a.step for a in result.alerts}
    assert 35 <= alarms[CAUSE[fault]] <= 45
    assert all(step >= 35 for step in alarms.values()), "nothing before the fault"
    assert not {"decay", "collapse"} & {s.phase for s in result.spans()}
    assert answers(result) == written_answers()[fault]


MAKE = runpy.run_path(str(CASES.parents[1] / "docs" / "make.py"))


def fault_table() -> str:
    """The table in docs/alarms.md."""
    rows = ["| fault | cause named | fires at step | also fires, at step |", "|---|---|---|---|"]
    for fault, cause in CAUSE.items():
        alarms = {a.rule: a.step for a in recorded(fault).alerts}
        others = [f"`{rule}` {step}" for rule, step in sorted(alarms.items(), key=lambda f: f[1])
                  if rule != cause]
        row = (f"`{fault}`", f"`{cause}`", str(alarms[cause]), ", ".join(others) or "nothing")
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join(rows)


def test_every_fault_has_a_recorded_run():
    assert {p.stem for p in RECORDED} == set(CAUSE)
    assert set(CAUSE) <= set(arms.FAULTS)


@pytest.mark.slow
def test_faults_of_the_bank_are_named():
    """In development runs no other cause is named. In test runs another may be, because no rule is
    changed for them; docs/research/study.md counts how often."""
    lines = [x for x in bank.index(bank.BANK).values() if x["settings"].get("fault")]
    wrong = {}
    for line in lines:
        findings = bank.assess_exported(line["run"]).look_alikes()
        causes = [name for name, finding in findings.items() if finding.answer == "supported"]
        cause = CAUSE[line["settings"]["fault"]]
        if cause not in causes or (line["split"] == "development" and causes != [cause]):
            wrong[line["run"]] = causes
    assert lines
    assert not wrong


# -- states ---------------------------------------------------------------------------------------


def states_by_definition(holds: list[bool], for_steps: int, clear_steps: int) -> list[str]:
    """The states by their definition, row by row."""
    out: list[str] = []
    for t in range(len(holds)):
        before = out[-1] if out else "inactive"
        lately = holds[: t + 1]
        if before == "firing":
            clear = len(lately) >= clear_steps and not any(lately[-clear_steps:])
            out.append("resolved" if clear else "firing")
        elif len(lately) >= for_steps and all(lately[-for_steps:]):
            out.append("firing")
        elif lately[-1]:
            out.append("pending")
        else:
            out.append("resolved" if "firing" in out else "inactive")
    return out


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5), st.integers(1, 6))
def test_states(holds, for_steps, clear_steps):
    flags = np.array(holds, dtype=bool)
    expected = states_by_definition(holds, for_steps, clear_steps)
    fires = firing(flags, for_steps, clear_steps) >= 0
    assert fires.tolist() == [state == "firing" for state in expected]


def test_a_pending_alarm_or_a_short_run_does_not_rule_out_a_cause():
    rule = next(r for r in RULES if r.id == "engine-mismatch")
    gap = np.full(rule.for_steps + 1, 0.5)
    answers = []
    for steps in range(1, len(gap) + 1):
        result = assess(frame({"engine_gap": gap[:steps]}))
        finding = result.look_alikes()["engine-mismatch"]
        waits = [a for a in result.pending if a.rule == rule.id]
        assert (finding.answer == "supported") == any(a.rule == rule.id for a in result.alerts)
        if finding.answer != "supported":
            assert finding.answer == "not_observable", steps
            assert "too early to say" in finding.evidence
            assert ("held since step 0" in finding.evidence) == bool(waits)
        answers.append(finding.answer)
    assert answers[0] == "not_observable"
    assert answers[-1] == "supported"
    calm = assess(frame({"engine_gap": np.zeros(40)})).look_alikes()["engine-mismatch"]
    assert calm.answer == "ruled_out"


def test_an_alarm_goes_through_its_states():
    holds = np.array([0, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1], dtype=bool)
    i, p, f, r = "inactive", "pending", "firing", "resolved"
    assert states_by_definition(holds.tolist(), 3, 3) == [i, p, i, p, p, f, f, f, f, f, r, p]
    assert firing(holds, for_steps=3, clear_steps=3).tolist() == [-1] * 5 + [5] * 5 + [-1] * 2


def test_an_outage_is_dated_by_its_first_failed_steps():
    n = 60
    failed = np.zeros(n)
    failed[28] = 1.0  # one bad step, then a good one: not the beginning
    failed[30:] = 0.9
    result = assess(frame({"tool_fail_share": failed, "reward": np.full(n, 0.5)}))
    event = next(one for one in result.account.events if one.rule == "tool-outage")
    assert event.alarm_step > 32
    assert event.low <= 30 <= event.high


# -- measurements ---------------------------------------------------------------------------


def test_over_former_max():
    """A jump is added to the former values after `lasts` steps, and without it never."""
    nan = float("nan")
    values = np.array([1.0, 2.0, nan, 2.0, 9.0, 9.0, 9.0, 3.0, 9.0])
    usual = over_former_max(values, limit=3.0, least=2)
    np.testing.assert_allclose(usual, [nan, nan, nan, 1, 4.5, 4.5, 4.5, 1.5, 3.0])
    twice = over_former_max(values, limit=3.0, least=2, lasts=2)
    np.testing.assert_allclose(twice, [nan, nan, nan, 1, 4.5, 4.5, 1, 1 / 3, 1])
    anew = over_former_max(values, 3.0, 2, None, np.arange(9) == 4)
    np.testing.assert_allclose(anew, [nan, nan, nan, 1, nan, nan, 1, 1 / 3, 1])
    assert np.isnan(over_former_max(np.zeros(5), 3.0, 2)).all()  # warm-up at a rate of 0


def test_shares_are_not_rounded_to_0_or_100_percent():
    assert [percent(x) for x in (0.0, 0.003, 0.42, 0.996, 1.0)] == [
        "0 %", "0.3 %", "42 %", "99.6 %", "100 %"
    ]


def test_severities_compare_by_badness_and_are_strings_in_json():
    assert sorted(["critical", "info", "warning"], key=Severity) == list(Severity)
    assert Severity.CRITICAL > "warning" > Severity.INFO
    assert Severity.INFO <= Severity.INFO >= "info"
    assert json.loads(to_json({"severity": Severity.WARNING})) == {"severity": "warning"}


# -- texts ---------------------------------------------------------------------------------


def test_every_alarm_is_fully_described():
    ids = [rule.id for rule in (*RULES, STALLED)]
    assert len(set(ids)) == len(ids)
    for rule in RULES:
        assert {*rule.needs, *rule.needs_too} <= set(SIGNALS.names), rule.id
    for rule in (*RULES, STALLED):
        for text in (rule.meaning, rule.evidence, rule.advice, rule.confused_with):
            assert text.endswith((".", "?")), (rule.id, text)


def test_messages_have_numbers_up_to_a_million_without_exponent():
    texts = [short(v) for v in (0.012345, 0.5, 999.4, 2345.6, -2345.6, 123456.0, 1234567.0)]
    assert texts == ["0.0123", "0.5", "999", "2,346", "-2,346", "123,456", "1.23e6"]
    assert (short(2345.6, 2), short(0.0256, 2)) == ("2,346", "0.026")


@pytest.mark.parametrize(("part", "made_now"), [("rules", MAKE["rules"]), ("faults", fault_table)])
def test_the_page_is_current(part, made_now):
    text = (CASES.parents[1] / "docs" / "alarms.md").read_text(encoding="utf-8")
    there = text.split(f"<!-- {part} -->\n")[1].split(f"<!-- end of {part} -->")[0]
    assert there.strip() == made_now().strip()


if __name__ == "__main__":
    write_answers()
