"""The train loop end to end on the shipped policy, and what it records."""

from __future__ import annotations

import itertools
import json
import re

import pytest
import torch
from click.testing import CliRunner
from keeper import BRIEF, SMALL, Keeper, train
from lldscope_trainer import cli
from lldscope_trainer.config import load_config
from lldscope_trainer.policy.logprobs import action_logps
from lldscope_trainer.train import Trainer
from scripted_monitor import Script, alarm

from lldscope.core.errors import UsageError
from lldscope.recording.rescore import rescore_sample


def run(*overrides: str, steps: int = 2) -> Keeper:
    keeper = Keeper()
    keeper.reports = []
    config = load_config("tiny", [*SMALL, f"steps={steps}", *overrides])
    train(config, keeper, on_step=keeper.reports.append)
    return keeper


@pytest.fixture(scope="module")
def plain() -> Keeper:
    return run("rescore_share=1", "eval_questions=24", "probes_every=1")


@pytest.fixture(scope="module")
def preserved() -> Keeper:
    return run("llds=action", "kl_coefficient=0.01", "lr=1e-3", "eval_every=1", "eval_questions=2",
               "rescore_share=0.5")


def test_retention_is_what_the_policy_says_after_the_step():
    keeper = Keeper()
    trainer = Trainer(load_config("tiny", [*SMALL, "retention=4", "lr=1e-3"]), keeper)
    for step in range(3):
        trainer.step(step)
    due, expected = [r for r in trainer.retention.due(3) if r.step < 2], {}
    assert len({len(r.ids) for r in due}) > 1, "all are of one length"
    for r in due:
        ids, mine = (torch.tensor(x.tolist())[None] for x in (r.ids, r.mask))
        with torch.no_grad():
            logps = action_logps(trainer.policy.model, ids, mine)[0]
        for action in {a for a in r.action.tolist() if a >= 0}:
            there = torch.from_numpy(r.action == action)
            expected[2 - r.step, r.response_id, action] = logps[there].sum().item()
    assert expected == pytest.approx({
        (r["age"], r["response_id"], r["action_index"]): r["logp_post_sum"]
        for r in keeper.rows("retention") if r["step"] == 2
    }, abs=1e-4)


def test_a_step_records_what_it_cost(preserved):
    for row, report in zip(preserved.rows("steps"), preserved.reports, strict=True):
        whole = row["seconds_rollout"] + row["seconds_update"] + row["seconds_record"]
        whole += row["seconds_evaluation"]
        assert sum(report.seconds.values()) == pytest.approx(whole)
        parts = [row[f"seconds_{part}"] for part in ("score", "reference", "sync")]
        assert all(0 <= part < row["seconds_update"] for part in parts)
        assert row["seconds_reference"] > 0
        assert row["seconds_evaluation"] > 0, "of the evaluation before it"
        assert row["memory_peak"] is None, "of a CPU nothing is known"


def test_the_fixed_set_is_the_correct_ones_of_the_first_evaluation(plain):
    values: dict[int, dict[int, float]] = {}
    for r in plain.rows("probes"):
        if r["probe"] == "probe_set_logp":
            assert "group_id" not in r
            values.setdefault(r["step"], {})[r["response_id"]] = r["value"]
    em = [r for r in plain.rows("evals") if r["step"] == 0 and r["metric"] == "em_greedy"]
    n_correct = round(sum(r["value"] * r["n"] for r in em))
    assert 0 < n_correct < 24
    assert all(set(v) == set(range(n_correct)) for v in values.values())
    first, last = values[0], values[1]
    assert all(-60 < value < 0 for value in first.values())
    assert first != last, "the policy has moved, the set has not"


def test_sums_agree_between_the_grains(plain):
    steps, responses, actions = (plain.rows(t) for t in ("steps", "responses", "actions"))
    for step in steps:
        mine = [r for r in responses if r["step"] == step["step"]]
        acts = [a for a in actions if a["step"] == step["step"]]
        assert step["n_responses"] == len(mine) == 16
        assert step["reward_sum"] == pytest.approx(sum(r["reward"] for r in mine))
        assert step["n_correct"] == sum(bool(r["correct"]) for r in mine)
        tokens = sum(a["n_tokens"] for a in acts)
        assert step["n_tokens"] == tokens == sum(r["n_tokens"] for r in mine)
        assert step["entropy_sum"] == pytest.approx(sum(a["entropy_sum"] for a in acts))
        for r in mine:
            each = [a for a in acts if a["response_id"] == r["response_id"]]
            assert [a["action_index"] for a in each] == list(range(r["n_actions"]))
            assert sum(a["kind"] == "search" for a in each) == r["n_searches"]
            assert r["answered"] == (each[-1]["kind"] == "answer")
    updates = plain.rows("updates")
    assert sum(u["n_tokens"] for u in updates) == sum(s["n_tokens"] for s in steps)


def test_the_first_update_of_a_step_is_on_policy(plain):
    for update in plain.rows("updates"):
        if update["update"] == 0:
            assert update["ratio_max"] == pytest.approx(1, abs=1e-3)
            assert update["n_clipped"] == 0
        assert update["grad_finite"]
        assert not update["skipped"]


def test_rescored_are_the_rows_of_the_rule(plain, preserved):
    for (keeper, share), step in itertools.product([(plain, 1), (preserved, 0.5)], range(2)):
        mine = [r for r in keeper.rows("responses") if r["step"] == step]
        correct, groups = ([r[name] for r in mine] for name in ("correct", "group_id"))
        sample = {mine[i]["response_id"] for i in rescore_sample(correct, groups, share, step)}
        assert sample
        for action in keeper.rows("actions"):
            if action["step"] == step:
                for name in ("logp_post_sum", "n_tokens_down", "drop_sum"):
                    assert (action[name] is not None) == (action["response_id"] in sample)


def test_llds_and_kl_are_recorded(preserved):
    actions = preserved.rows("actions")
    advantage = {(r["step"], r["response_id"]): r["advantage"] for r in preserved.rows("responses")}
    for action in actions:
        if advantage[action["step"], action["response_id"]] < 0:
            assert not action["llds_gate"]
        drop = action["logp_old_sum"] - action["logp_inner_sum"]
        if action["llds_gate"]:  # Eq. 4: an open gate needs a falling sum
            assert drop > -1e-4
            assert action["llds_sum"] >= drop - 1e-4
    assert any(action["llds_gate"] for action in actions)
    first, second = preserved.rows("steps")
    assert first["loss_llds"] > 0
    assert first["kl_sum"] == pytest.approx(0, abs=1e-4)  # still the reference itself
    assert second["kl_sum"] > 0


def test_rounding_opens_no_gate():
    """In bfloat16 with weights that stay as they are, in every update of a step: old and reference
    are scored in the very passes of the updates."""
    keeper = run("dtype=bfloat16", "llds=token", "lr=1e-30", "kl_coefficient=0.01",
                 "micro_tokens=700", steps=1)
    assert not any(action["llds_gate"] for action in keeper.rows("actions"))
    assert {(step["loss_llds"], step["loss_kl"]) for step in keeper.rows("steps")} == {(0, 0)}
    assert {update["ratio_max"] for update in keeper.rows("updates")} == {1}
    gaps = [a["logp_behaviour_sum"] - a["logp_old_sum"] for a in keeper.rows("actions")]
    assert any(abs(gap) > 1e-4 for gap in gaps), "the sampler rounds otherwise"


def test_a_non_finite_gradient_is_skipped_and_told(monkeypatch):
    keeper = Keeper()
    trainer = Trainer(load_config("tiny", SMALL), keeper)
    before = {k: v.clone() for k, v in trainer.policy.model.state_dict().items()}
    real = trainer.updater._loss

    def poisoned(*arguments):
        loss, measures = real(*arguments)
        return loss * float("nan"), measures

    monkeypatch.setattr(trainer.updater, "_loss", poisoned)
    trainer.step(0)
    assert all(row["skipped"] and not row["grad_finite"] for row in keeper.rows("updates"))
    assert [e["kind"] for e in keeper.events] == ["nonfinite_gradient"] * 4
    for name, value in trainer.policy.model.state_dict().items():
        assert torch.equal(value, before[name])
    monkeypatch.undo()
    trainer.step(1)
    assert keeper.rows("steps")[1]["policy_version"] == 0


# -- command line ---------------------------------------------------------------------------------


def invoke(*arguments: str, obj=None):
    return CliRunner().invoke(cli.train, [*arguments], obj=obj)


def test_command_trains_and_keeps_its_config(tmp_path):
    directory = tmp_path / "run"
    monitor = Script(look1=[alarm(step=1)])
    result = invoke(
        "tiny", *BRIEF, "steps=2", "--run", str(directory), obj={"monitor": lambda path: monitor}
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(directory)
    assert "warning lld-decay firing at step 1: Δ fell" in result.stderr
    *_, last_step, seconds, end = result.stderr.splitlines()
    assert "decay" in last_step
    assert seconds.startswith("  seconds: ")
    assert "rollout" in seconds
    assert end.startswith("reward of the last 2 steps")
    assert monitor.looks >= 2
    assert monitor.is_closed
    info = json.loads((directory / "run.json").read_text())
    assert info["status"] == "finished"
    assert info["config"] == load_config("tiny", [*BRIEF, "steps=2", "name=run"]).to_dict()
    assert "exact match" in info["correct_rule"]


def test_command_stopped_by_the_user(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("lldscope_trainer.loop.run", interrupted)
    result = invoke("tiny", "--run", str(tmp_path / "run"))
    assert result.exit_code == 130
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "stopped"


def test_recording_changes_nothing_in_the_training(plain):
    """With and without re-score, tokens and probes: the same rollouts and updates, to the bit."""
    bare = run("rescore_share=0", "tokens_every=0")
    for table, names in (("responses", ("reward", "n_tokens")), ("updates", ("grad_norm",))):
        for name in names:
            values = [[row[name] for row in k.rows(table)] for k in (bare, plain)]
            assert values[0] == values[1], name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["prompts=4"], "a step takes 4 questions, the training data holds 3"),
        (["prompts=2", "sequence_tokens=64"], "question 2 of mine .* leaves no room for a turn"),
    ],
    ids=["too few", "too long"],
)
def test_questions_that_no_step_could_take_are_refused_at_once(tmp_path, settings, message):
    """Not at the step that draws them, hours later and after every resume again."""
    questions, corpus = tmp_path / "mine.jsonl", tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"id": "1", "contents": "Title\nText"}) + "\n")
    questions.write_text("".join(
        json.dumps({"id": i, "data_source": "mine", "question": q, "answers": ["x"]}) + "\n"
        for i, q in enumerate(["Who?", "What?", "Who " * 60])
    ))
    run = tmp_path / "run"
    done = invoke("tiny", f"data={questions}", f"corpus={corpus}", *settings, "--run", str(run))
    assert isinstance(done.exception, UsageError), done.stderr
    assert re.search(message, str(done.exception))
    assert not run.exists()
