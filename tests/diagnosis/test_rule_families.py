"""What the cases of single rules cannot say: rates, costs, planned lengths, and what is advised."""

from __future__ import annotations

import numpy as np
import pytest
from rule_cases import frame

from lldscope.diagnosis.assess import Assessment, assess
from lldscope.diagnosis.decay_test import RUN_RATE
from lldscope.diagnosis.rule import Alert
from lldscope.diagnosis.rules import groups

NAN = float("nan")


def alert(result: Assessment, rule: str) -> Alert | None:
    return next((a for a in result.alerts if a.rule == rule), None)


# -- the held-out score ---------------------------------------------------------------------------


def evaluated(scores: dict[int, float], reward: np.ndarray, questions: float = 128) -> Assessment:
    score = np.array([scores.get(step, NAN) for step in range(len(reward))])
    count = np.where(np.isnan(score), NAN, questions)
    return assess(frame({"reward": reward, "eval_score": score, "eval_n": count}))


def test_a_fall_between_two_evaluations_is_seen_at_the_second():
    result = evaluated({0: 0.5, 50: 0.8, 100: 0.5, 150: 0.55}, np.linspace(0.3, 0.8, 160))
    alarm = alert(result, "eval-gap")
    assert alarm is not None
    assert alarm.step == 100
    assert "0.5 at step 100 and was 0.8 at step 50" in alarm.message
    assert alarm.episodes == ((100, None),), "the next evaluation is no better"


@pytest.mark.parametrize(
    ("steps", "scale", "questions"), [(1, 1, NAN), (100, 1, NAN), (1, 10, 128)]
)
def test_scores_that_are_no_shares_of_questions_are_judged_by_their_noise(steps, scale, questions):
    at = np.arange(0, 300, 10)
    shares = 0.3 + 0.2 * (1 - np.exp(-at / 60)) - 0.35 * np.clip((at - 150) / steps, 0, 1)
    scores = dict(zip(at, scale * shares, strict=True))
    result = evaluated(scores, np.linspace(0.3, 0.8, 300), questions)
    assert alert(result, "eval-gap").step <= 200
    assert alert(result, "eval-loss").step <= 250


def test_an_evaluation_that_is_as_good_again_ends_it():
    result = evaluated({0: 0.5, 50: 0.8, 100: 0.5, 150: 0.8}, np.linspace(0.3, 0.8, 200))
    alarm = alert(result, "eval-gap")
    assert alarm is not None
    assert alarm.episodes == ((100, 169),)


def test_few_questions_show_no_fall():
    scores = {0: 0.5, 50: 0.8, 100: 0.5, 150: 0.55}
    assert alert(evaluated(scores, np.linspace(0.3, 0.8, 160), questions=16), "eval-gap") is None


@pytest.mark.parametrize(
    ("scores", "fires"),
    [([0.75], False), ([0.75, 0.75], False), ([0.71], False), ([0.71, 0.71], True),
     ([0.71, 0.8, 0.71], False), ([0.67], True)],
)
def test_a_small_loss_has_to_last_however_many_questions(scores, fires):
    """0.8 before: under a tenth never, a tenth twice in a row, 15 % at once."""
    evaluations = {0: 0.5, 50: 0.8} | {60 + 10 * i: score for i, score in enumerate(scores)}
    result = evaluated(evaluations, np.linspace(0.3, 0.8, 110), questions=50_000)
    assert (alert(result, "eval-gap") is not None) == fires


def test_other_questions_in_training_are_not_compared():
    reward = np.concatenate([np.full(60, 0.3), np.full(60, 0.8)])
    scores = {0: 0.6, 50: 0.8, 100: 0.5}
    assert alert(evaluated(scores, reward), "eval-gap") is not None
    table = evaluated(scores, reward).evidence.signals
    assert alert(assess(table, restarts={60: "data"}), "eval-gap") is None


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_scores_that_do_not_fall_seldom_seem_to(share):
    """Questions drawn anew for each of twenty evaluations."""
    runs, false = 60, 0
    for seed in range(runs):
        counts = np.random.default_rng(seed).binomial(128, share, 20) / 128
        scores = dict(zip(range(0, 200, 10), counts.tolist(), strict=True))
        false += alert(evaluated(scores, np.linspace(0.3, 0.8, 200)), "eval-gap") is not None
    assert false <= 2 * RUN_RATE * runs


# -- the entropy's floor --------------------------------------------------------------------------


def test_the_planned_length_decides_whether_the_floor_is_reached():
    rng = np.random.default_rng(0)
    entropy = 0.4 * np.exp(-np.arange(100) / 60) * np.exp(rng.normal(0, 0.03, 100))
    table = frame({"reward": np.full(100, 0.5), "entropy": entropy})
    steps = {n: alert(assess(table, planned_steps=n), "entropy-floor") for n in (120, 400)}
    assert steps[120] is None
    assert steps[400] is not None
    assert "400 steps are planned" in steps[400].message
    assert steps[400].value < steps[400].threshold
    unplanned = alert(assess(table.assign(step=np.arange(1000, 1100))), "entropy-floor")
    assert unplanned is not None
    assert "(how many are planned is not known)" in unplanned.message


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [(0.1, -0.6, "the reward went from 0.1 to -0.6"),
     (0.6, 0.3, "the reward went to 50 % of what it was (0.6 before, 0.3 now)")],
)
def test_no_share_is_taken_of_a_reward_that_was_under_zero(before, after, words):
    line = np.interp(np.arange(200), [0, 60, 100, 101], [after, before, before, after])
    length = np.where(np.arange(200) < 101, 200.0, 120.0)
    alarm = alert(assess(frame({"reward": line, "response_tokens": length})), "step-change")
    assert alarm is not None
    assert words in alarm.message


@pytest.mark.parametrize(("delta", "words"), [(0.3, "the step gain: "), (-0.3, "the step do: ")])
def test_retention_loss_calls_no_loss_a_gain(delta, words):
    signals = {"delta_correct": (0.3, delta), "retention_delta": (0.02, -0.8)}
    table = {name: np.where(np.arange(100) < 50, *levels) for name, levels in signals.items()}
    alarm = alert(assess(frame(table)), "retention-loss")
    assert alarm is not None
    assert words in alarm.message


def test_a_large_surge_is_one_however_much_the_entropy_fluctuated():
    """A spike that is over, and 50 times the entropy within six steps."""
    rng, level = np.random.default_rng(1), np.full(46, 0.1)
    level[7:10], level[34:] = 1.0, 5.0
    level[28:34] = 0.1 * 50 ** (np.arange(1, 7) / 6)
    entropy = level * np.exp(rng.normal(0, 0.2, 46))
    result = assess(frame({"reward": rng.normal(0.5, 0.02, 46), "entropy": entropy}))
    surge = alert(result, "entropy-surge")
    assert surge is not None
    assert surge.first_step <= 34


@pytest.mark.parametrize(("first", "severity"), [(0.7, "info"), (0.1, "warning")])
def test_responses_that_were_cut_from_the_start_are_no_change(first, severity):
    """A row every five steps, of few rollouts."""
    step, rng = np.arange(0, 200, 5), np.random.default_rng(0)
    cut = np.clip(np.linspace(first, 0.98, 40) + rng.normal(0, 0.1, 40), 0, 1)
    table = {"step": step, "reward": rng.normal(0.5, 0.02, 40), "truncated_share": cut}
    assert alert(assess(frame(table)), "truncation").severity == severity


@pytest.mark.parametrize(("begins", "answer"), [(44, "consequence"), (40, "supported")])
def test_responses_that_are_cut_explain_no_loss_that_was_there_before(begins, answer):
    """The reward goes from 0.9 to nothing over steps 40 to 45; from which step on are they cut?"""
    step, rng = np.arange(80), np.random.default_rng(0)
    left = np.clip((45 - step) / 5, 0, 1)
    cut = np.clip((step - begins + 1) / 5, 0, 1)
    table = {"reward": 0.9 * left + rng.normal(0, 0.02, 80), "truncated_share": cut}
    assert assess(frame(table)).look_alikes()["truncation"].answer == answer


@pytest.mark.parametrize(
    ("begins", "lld", "truncation"),
    [(60, "supported", "consequence"), (50, "ruled_out", "supported")],
)
def test_responses_that_are_cut_explain_a_fall_only_from_before_it(begins, lld, truncation):
    """Correct responses lose likelihood from step 60 on; from which step on are they cut?"""
    step, rng = np.arange(80), np.random.default_rng(0)
    delta = np.where(step < 60, 0.3, -3.0) + rng.normal(0, 0.3, 80)
    cut = np.where(step < begins, 0.02, 0.9)
    table = {"reward": rng.normal(0.5, 0.02, 80), "delta_correct": delta, "truncated_share": cut}
    causes = assess(frame(table)).look_alikes()
    assert (causes["lld"].answer, causes["truncation"].answer) == (lld, truncation)


@pytest.mark.parametrize(("every", "fires"), [(4, False), (80, True)])
def test_a_gradient_that_comes_now_and_then_has_not_vanished(every, fires):
    """From step 40 on few groups differ: one step in `every` has a usual gradient."""
    step, rng = np.arange(120), np.random.default_rng(0)
    norm = np.where((step < 40) | (step % every == 0), 2.0, 0.02) * rng.lognormal(0, 0.2, 120)
    table = {"reward": rng.normal(0.7, 0.02, 120), "grad_norm": norm}
    assert (alert(assess(frame(table)), "grad-vanishing") is not None) == fires


# -- groups without a signal ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "wrong", "reward", "advice"),
    [
        (0.97, 0.02, 0.5, groups.RIGHT.advice),
        (0.0, 1.0, 0.5, groups.WRONG.advice),
        (0.5, 0.48, 0.5, groups.BOTH.advice),
        (NAN, NAN, 0.5, groups.BOTH.advice),
        (NAN, NAN, 0.88, groups.BOTH.advice),
        (NAN, NAN, 0.96, groups.RIGHT.advice),
        (NAN, NAN, 0.2, groups.WRONG.advice),
        (NAN, NAN, -0.5, groups.WRONG.advice),
        (NAN, NAN, 3.0, groups.BOTH.advice),
    ],
)
def test_what_is_advised_goes_by_which_groups_they_are(right, wrong, reward, advice):
    columns = {
        "reward": reward, "zero_signal_share": 0.99, "all_right_share": right,
        "all_wrong_share": wrong,
    }
    result = assess(frame({name: np.full(80, value) for name, value in columns.items()}))
    alarm = alert(result, "zero-signal")
    assert alarm is not None
    assert alarm.advice == advice
