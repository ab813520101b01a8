"""Cause and action in one sentence, and what people note of an alarm."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lldscope
from lldscope.diagnosis.account import Account, Event, Onset
from lldscope.diagnosis.assess import UNKNOWN
from lldscope.diagnosis.outcome import Rise
from lldscope.diagnosis.registry import RULES
from lldscope.diagnosis.rule import Alert, Severity
from lldscope.monitor.headline import Trouble, headline
from lldscope.monitor.health import check
from lldscope.monitor.liveness import Liveness
from lldscope.storage.notes import silenced

SAMPLES = Path(__file__).parents[2] / "sample_runs"
LIVE = Liveness("live", None, 1.0)


RULE = {rule.id: rule for rule in RULES}


def alert(rule: str, step: int, severity: str = "critical"):
    episodes, (cause, action) = ((step, None),), (f"Rule {rule}", "do this")
    if rule in RULE:
        cause, action = RULE[rule].cause, RULE[rule].action
    return Alert(
        rule, Severity(severity), "firing", step, 1.0, 0.5, "", "", "", "", "", episodes,
        cause, action,
    )


def trouble(
    *alerts, causes=(), events=(), verdict="critical", restarts=None, dated=(), **course
) -> Trouble:
    account = Account(alerts, dated, set(causes), restarts or {})
    return Trouble(verdict, alerts, account, events, LIVE, replace(UNKNOWN, **course))


def test_the_cause_that_the_log_supports_comes_before_a_graver_alarm() -> None:
    crash, outage = alert("reward-crash", 30), alert("tool-outage", 29)
    assert headline(trouble(crash, outage)).rule == "reward-crash"
    result = headline(trouble(crash, outage, causes={"tool-outage"}))
    assert (result.rule, result.step) == ("tool-outage", 29)
    assert str(result).startswith("Retriever or tool dead (firing since step 29): fix it, and ")


def test_what_began_before_a_loss_is_what_to_change_and_what_began_after_it_is_not() -> None:
    crash, outage = alert("reward-crash", 60), alert("tool-outage", 54)
    before, after = alert("entropy-surge", 40, "warning"), alert("truncation", 61, "warning")
    result = headline(trouble(crash, before, after)).action
    assert result.startswith(
        "lower the learning rate (the entropy rose sharply, step 40), and "
    )
    info = replace(before, severity=Severity.INFO)  # while the reward rose
    assert headline(trouble(crash, info)).action.startswith("look for what broke first, and ")
    first = replace(before, step=48, episodes=((40, None),))  # a warning only later
    assert "sharply, step 40)" in headline(trouble(crash, first)).action
    collapse = trouble(crash, alert("lld-collapse", 40, "warning"), causes={"lld"})
    assert "lost likelihood, and the policy breaks, step 40)" in headline(collapse).action
    for alerts, causes in (((crash, after), ()), ((crash, outage, before), {"tool-outage"})):
        result = headline(trouble(*alerts, causes=causes)).action
        assert "learning rate" not in result
        assert "limit" not in result


@pytest.mark.parametrize(
    ("sign", "end", "causes", "action"),
    [
        ("lr-jump", 90, {"lr-jump"},
         "lower the learning rate (the learning rate jumped, step 58)"),
        ("lr-jump", 59, {"lr-jump"}, "look for what broke first"),  # over before the fall
        ("lr-jump", 90, (), "look for what broke first"),  # the log does not support it
        ("step-change", None, (),
         "check the retriever, the tools and the data (reward and response length changed within "
         "one step, step 58)"),
        ("entropy-surge", None, (), "look for what broke first"),  # began with the fall
        ("truncation", None, (), "look for what broke first"),  # so did this, and is no cause
    ],
)
def test_what_led_to_a_loss_that_goes_on_is_named_though_it_is_over(sign, end, causes, action):
    crash, earlier = alert("reward-crash", 60), alert("truncation", 30, "info")
    state = "firing" if end is None else "resolved"
    cause = replace(alert(sign, 58, "warning"), state=state, episodes=((58, end),))
    result = headline(trouble(crash, cause, earlier, causes=causes))
    assert (result.rule, result.action.partition(", and ")[0]) == ("reward-crash", action)


def test_a_restart_at_the_loss_is_what_to_look_at() -> None:
    events = [{"kind": "checkpoint", "step": step} for step in (45, 49)]
    late, early = (
        headline(trouble(alert("reward-crash", 60), events=events, restarts=restarts))
        for restarts in ({20: "lr", 48: "resume"}, {20: "lr"})
    )
    assert late.action == (
        "look at what changed at step 48 (the run was resumed), and go back to checkpoint 45."
    )
    assert early.action == "look for what broke first, and go back to checkpoint 49."


def test_a_failed_run_says_what_its_rows_say_and_resumes_from_before_that(tmp_path) -> None:
    rng, run = np.random.default_rng(0), tmp_path / "run"
    recorder = lldscope.Recorder(run, trainer="made up")
    for step in range(160):
        recorder.step(step=step, time=1.7e9 + 60 * step)
        reward = min(0.2 + step / 150, 0.6) * (1 if step < 147 else 0.2) + rng.normal(0, 0.02)
        entropy = (0.5 if step < 130 else 3.0) + rng.normal(0, 0.01)
        recorder.scalars(step=step, name=["reward", "entropy"], value=[reward, entropy])
    for step in (100, 144, 155):
        recorder.event("checkpoint", step=step, path=f"ckpt/{step}")
    recorder.close(status="failed", reason="MemoryError: too much")
    with lldscope.open_run(run) as reader:
        state = check(reader)
    line = str(state.headline)
    assert line.startswith("Failed after step 159: MemoryError: too much. The reward is being lost")
    assert "look at the job's own log; lower the learning rate (the entropy rose sharply" in line
    assert line.endswith("go back to checkpoint 100.")
    assert state.alerts[0].message == "the run has failed: MemoryError: too much"
    assert state.alerts[0].advice.endswith("resume from checkpoint 100.")


def test_a_run_of_scalars_without_a_step_can_be_checked(tmp_path) -> None:
    with lldscope.Recorder(tmp_path / "run") as recorder:
        recorder.scalars(step=0, name=["loss", "component/bonus"], value=[1.0, 0.5])
    with lldscope.open_run(tmp_path / "run") as run:
        assert check(run).verdict == "insufficient"


def test_the_trouble_began_with_the_held_out_score_where_that_fell_first() -> None:
    cut = alert("truncation", 40, "warning")
    event = Event("truncation", Severity.WARNING, "", 40, None, 33, 33, 34)
    assert Account([cut], [event]).onset() == Onset("truncation", 40, 32)
    gap = alert("eval-gap", 20, "warning")
    assert Account([cut, gap], [event]).onset() == Onset("eval-gap", 20, 10)
    assert Account([replace(cut, severity=Severity.INFO)]).onset() is None


def test_a_sign_that_began_after_the_reward_fell_is_not_what_to_act_on() -> None:
    decline, cut = alert("reward-decline", 40, "warning"), alert("truncation", 60, "warning")
    result = headline(trouble(decline, cut, verdict="warning"))
    assert result.rule == "truncation"
    assert result.action == "look for what began before the reward fell."
    supported = headline(trouble(decline, cut, verdict="warning", causes={"truncation"}))
    assert supported.action == result.action


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.severity != "info"], ids=lambda rule: rule.id
)
def test_every_alarm_that_is_told_of_has_words_of_its_own(rule) -> None:
    cause = headline(trouble(alert(rule.id, 30, rule.severity))).cause
    assert cause.endswith("(firing since step 30)")
    assert rule.id not in cause


def test_a_run_that_is_quiet_and_learns_nothing_says_so() -> None:
    assert headline(trouble(verdict="healthy", rise=Rise(True, 10, 40))).cause == (
        "No alarm fires"
    )
    flat = Rise(False, 10, 40)
    result = headline(trouble(verdict="healthy", rise=flat))
    assert str(result) == (
        "No alarm fires; but the reward of the last 40 steps is not clearly above that of the "
        "first 10"
    )
    # What has not risen has no best that it could be under, if it has not fallen beyond its noise.
    low = {"verdict": "healthy", "share": 0.49}
    assert headline(trouble(**low, rise=flat)) == result
    assert headline(trouble(**low, rise=flat, has_fallen=True)).cause == (
        "No alarm fires; but the reward is at 49 % of its best, as it has fluctuated before; the "
        "reward of the last 40 steps is not clearly above that of the first 10"
    )
    assert headline(trouble(**low)).cause == (
        "No alarm fires; but the reward is at 49 % of its best, which its noise can explain"
    )


@pytest.mark.parametrize(
    ("saved", "text"),
    [
        ([10, 20, 30], "go back to checkpoint 20."),  # 30 may have seen the fault
        ([30], "stop and restart (no earlier checkpoint is recorded)."),
        ([], "stop and restart (no earlier checkpoint is recorded)."),
    ],
)
def test_a_checkpoint_is_named_only_if_it_is_from_well_before(saved, text) -> None:
    events = [{"kind": "checkpoint", "step": s} for s in saved] + [{"kind": "checkpoint"}]
    assert headline(trouble(alert("tool-outage", 34), events=events)).action.endswith(text)


def test_a_beginning_dates_the_headline_and_the_checkpoint() -> None:
    event = Event("tool-outage", Severity.CRITICAL, "", 34, None, 30, 30, 30)
    events = [{"kind": "checkpoint", "step": step} for step in (20, 29, 30)]
    result = headline(trouble(alert("tool-outage", 34), events=events, dated=[event]))
    assert result.step == 30
    assert str(result).startswith("Retriever or tool dead (began at step 30): fix it, and ")
    assert result.action.endswith("go back to checkpoint 29.")
    # An interval that reaches to the start of the run does not send everybody there.
    wide = Event("tool-outage", Severity.CRITICAL, "", 80, None, 70, 5, 75)
    events.append({"kind": "checkpoint", "step": 49})
    result = headline(trouble(alert("tool-outage", 80), events=events, dated=[wide]))
    assert result.action.endswith("go back to checkpoint 49.")
    # It was there once before: what was trained since then is to be thrown away, too.
    again = replace(alert("tool-outage", 34), step=12, episodes=((12, 25), (34, None)))
    assert "restart" in headline(trouble(again, events=events, dated=[event])).action


def test_an_alarm_is_acknowledged_snoozed_and_heard_again(tmp_path, lldscope_command) -> None:
    run = shutil.copytree(SAMPLES / "retriever-dies", tmp_path / "run")

    def noted(*arguments: str) -> dict:
        done = lldscope_command("acknowledge", run, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(lldscope_command("check", run, "--json").stdout)

    lldscope_command("acknowledge", run, "tool-outage")
    until = pytest.approx(time.time() + 7200, abs=600)
    both = noted("truncation", "--for", "2")
    assert both["silenced"] == {"tool-outage": None, "truncation": until}
    assert both["headline"]["rule"] == "tool-outage"
    output = lldscope_command("check", run).stdout
    assert output.splitlines()[1].startswith("→ Retriever or tool dead (began at step 30): fix it")
    assert "tool-outage (acknowledged)" in output
    assert "truncation (snoozed for" in output
    assert [*noted("tool-outage", "--undo")["silenced"]] == ["truncation"]
    wrong = lldscope_command("acknowledge", run, "lld-decay")
    assert wrong.returncode == 2
    assert "Firing now: reward-crash, tool-outage" in wrong.stderr


def test_a_note_holds_for_the_episode_that_it_was_made_for(tmp_path: Path) -> None:
    at = [{"kind": "acknowledge", "rule": "a", "step": 5, "until": None}]
    assert silenced(at, {"a": 5, "b": 5}) == {"a": None}
    assert silenced(at, {"a": 90}) == {}
    snooze = [{"kind": "snooze", "rule": "a", "step": 5, "until": 100.0}]
    assert silenced(snooze, {"a": 5}, now=99.0) == {"a": 100.0}
    assert silenced(snooze, {"a": 5}, now=101.0) == {}
    assert silenced([*at, {"kind": "heard", "rule": "a", "step": 5, "until": None}], {"a": 5}) == {}
