"""The guard: alarms become actions, and the actions really happen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from keeper import BRIEF, SMALL, Keeper, train
from lldscope_trainer import cli
from lldscope_trainer.checkpoint import find_checkpoint
from lldscope_trainer.config import load_config
from lldscope_trainer.guard import Cures, Guard
from lldscope_trainer.train import Trainer
from safetensors.torch import load_file
from scripted_monitor import Script, alarm

import lldscope
from lldscope.core.errors import UsageError


def test_what_it_decides():
    guard = Guard("stop,llds,save", "lld-decay, lld-collapse")
    assert guard.actions == ("llds", "save", "stop")
    assert guard.decide([]) is None
    assert guard.decide([alarm("truncation")]) is None
    assert guard.decide([alarm()]) == "lld-decay"
    assert guard.firing == ("lld-decay", "truncation")
    assert guard.decide([alarm()]) is None, "it goes on firing: nothing new"
    assert guard.decide([alarm(state="resolved")]) is None
    assert guard.firing == ("truncation",)
    assert guard.decide([alarm(step=9)]) == "lld-decay", "once more"
    again = alarm() | {"episodes": [[2, 5], [9, 12], [14, None]]}  # resolved between two looks
    assert guard.decide([again]) == "lld-decay"
    off = Guard("off", "lld-decay")
    assert off.decide([alarm()]) is None
    assert (off.firing, off.answered) == (("lld-decay",), ())


def test_after_a_resume_what_was_answered_is_not_answered_again():
    before = Guard("stop", "lld-decay,lld-collapse")
    before.decide([alarm()])
    assert before.answered == ("lld-decay",)
    # A new process knows nothing: its first look tells everything that still fires.
    guard = Guard("stop", "lld-decay,lld-collapse", before.answered)
    assert guard.decide([alarm(), alarm("truncation")]) is None
    assert guard.decide([alarm("lld-collapse")]) == "lld-collapse"
    assert guard.decide([alarm(state="resolved")]) is None
    assert guard.decide([alarm(step=30)]) == "lld-decay"


@pytest.mark.slow
def test_rolling_back_takes_weights_and_optimizer_back(tmp_path):
    settings = [*SMALL, "eval_questions=0", "checkpoint_every=2", "guard=rollback,llds",
                "checkpoints_kept=1", "guard_margin=0", "save_policy=true"]
    keeper = Keeper()
    # The alarm comes after step 4, the fifth look; the weights go back to those before step 4. The
    # checkpoint that would be due at 6 must not be healthy while the alarm fires.
    train(
        load_config("tiny", [*settings, "steps=5"]), keeper, run_dir=tmp_path,
        monitor=Script(look5=[alarm()]),
    )
    # What was gone back to is written down at once: a run killed now must not wake up ill.
    kinds = [e["kind"] for e in keeper.events]
    assert kinds == ["checkpoint", "checkpoint", "rollback", "llds", "checkpoint"]
    newest = find_checkpoint(tmp_path).state
    assert (newest.step, newest.cures.llds, newest.alarmed) == (5, "action", ("lld-decay",))
    assert newest.answered == ("lld-decay",)
    back = keeper.events[2]
    assert (back["step"], back["to_step"], back["rule"]) == (4, 4, "lld-decay")
    saved = load_file(tmp_path / "checkpoints/step-00000004/policy/model.safetensors")
    final = load_file(tmp_path / "policy/model.safetensors")
    assert all(torch.equal(saved[name], final[name]) for name in saved)

    going_on = Keeper()
    config = load_config("tiny", [*settings, "steps=6"])
    train(config, going_on, checkpoint=find_checkpoint(tmp_path))
    before, (after,) = keeper.rows("steps")[4], going_on.rows("steps")
    assert before["loss_llds"] is None
    assert after["loss_llds"] is not None, "the guard switched LLDS on"
    assert after["policy_version"] == before["policy_version"], "the weights are those of step 4"


def test_a_cure_changes_what_its_alarm_asks_for():
    start = Cures.of(load_config("tiny", ["llds_coefficient=0.1"]))
    with_llds = replace(start, llds="action", llds_coefficient=0.2)
    assert start.against("lld-decay", 0.2) == with_llds
    assert replace(start, llds="token").with_llds(0.5) == replace(
        start, llds="token", llds_coefficient=0.5
    )
    assert start.against("step-size", 0.2) == replace(start, lr_share=0.5)
    assert start.against("lr-jump", 0.2).against("retention-loss", 0.2).lr_share == 0.25
    weighed = start.against("engine-mismatch", 0.2)
    assert weighed == replace(start, importance_sampling="token_truncate")
    assert weighed.against("engine-mismatch", 0.2) == weighed
    masked = replace(start, importance_sampling="token_mask")
    assert masked.against("engine-mismatch", 0.2) == masked


def test_a_cure_of_the_learning_rate_is_used_recorded_and_kept(tmp_path):
    settings = [*BRIEF, "guard=cure,save", "guard_on=step-size,lld-decay",
                "lr=4e-4", "warmup_steps=0"]
    keeper = Keeper()
    reports = []
    train(
        load_config("tiny", [*settings, "steps=3"]), keeper, run_dir=tmp_path,
        monitor=Script(look2=[alarm("step-size") | {"severity": "info"}]), on_step=reports.append,
    )
    assert [row["lr"] for row in keeper.rows("steps")] == [4e-4, 4e-4, 2e-4]
    (change,) = [e for e in keeper.events if e["kind"] == "lr_change"]
    assert change == {"kind": "lr_change", "step": 2, "lr": 2e-4, "rule": "step-size"}
    assert "half the learning rate, 0.0002" in reports[1].notes[0]
    saved = find_checkpoint(tmp_path)
    assert (saved.state.step, saved.state.cures.lr_share) == (2, 0.5)
    going_on = Keeper()
    train(load_config("tiny", [*settings, "steps=3"]), going_on, checkpoint=saved)
    assert [row["lr"] for row in going_on.rows("steps")] == [2e-4]


def test_an_alarm_without_a_cure_is_refused():
    with pytest.raises(UsageError, match="there is no cure for truncation; there is for lld-decay"):
        load_config("tiny", ["guard=cure", "guard_on=lld-decay,truncation"])
    load_config("tiny", ["guard=stop", "guard_on=lld-decay,truncation"])


def test_an_alarm_that_does_not_exist_is_refused(lldscope_command, tmp_path):
    done = lldscope_command(
        "train", "tiny", "guard=stop", "guard_on=lld_decay", "--run", tmp_path / "run"
    )
    assert done.returncode == 2
    assert "there is no alarm 'lld_decay'; there are lld-stagnation, lld-decay," in done.stderr
    assert not (tmp_path / "run").exists()


def test_without_a_healthy_checkpoint_it_says_so(tmp_path):
    keeper = Keeper()
    reports = []
    train(
        load_config("tiny", [*BRIEF, "checkpoint_every=2", "guard=rollback", "steps=1"]),
        keeper, run_dir=tmp_path, monitor=Script(look1=[alarm()]), on_step=reports.append,
    )
    assert [e["kind"] for e in keeper.events] == ["rollback_failed"]
    assert "no healthy checkpoint" in reports[0].notes[0]


def test_a_stopped_run_can_be_resumed_with_or_against_what_the_guard_did(tmp_path):
    run = tmp_path / "run"
    monitor = Script(look2=[alarm()])
    arguments = ["tiny", *BRIEF, "guard=llds,stop", "steps=9", "--run", str(run)]
    result = CliRunner().invoke(cli.train, arguments, obj={"monitor": lambda _: monitor})
    assert result.exit_code == cli.STOPPED_BY_GUARD, result.output
    assert "the guard stopped the run at step 1: lld-decay fires" in result.stderr
    info = json.loads((run / "run.json").read_text())
    assert info["status"] == "stopped"
    assert "lld-decay" in info["reason"]
    for *settings, in_force in (
        (None, (), ("action", 0.2)), ("llds=token", ("llds_coefficient=0.3",), ("token", 0.3))
    ):
        _, checkpoint = cli._resumed(run, *settings, None)
        trainer = Trainer(load_config("tiny", BRIEF), Keeper(), checkpoint=checkpoint)
        assert (trainer.updater.cures.llds, trainer.updater.cures.llds_coefficient) == in_force
    result = CliRunner().invoke(cli.train, ["--resume", "--run", str(run), "guard=off", "steps=3"])
    assert result.exit_code == 0, result.output
    assert lldscope.open_run(run).signals()["step"].tolist() == [0, 1, 2]


@pytest.mark.slow
def test_a_real_alarm_rolls_a_real_run_back(tmp_path):
    """A learning rate that ruins the tiny policy: the alarm is raised by the analyzer, from rows
    on disk, while training runs."""
    from lldscope.monitor.follow import Monitor

    run = tmp_path / "run"
    result = CliRunner().invoke(
        cli.train,
        ["tiny", "prompts=2", "group_size=8", "updates=4", "eval_questions=0", "lr=3e-3",
         "sequence_tokens=160",
         "steps=60", "checkpoint_every=4", "guard=rollback,llds,stop", "tokens_every=0",
         "guard_on=lld-decay,lld-collapse,entropy-surge,reward-crash", "guard_margin=8",
         "--run", str(run)],
        obj={"monitor": lambda path: Monitor(path, every=0.5)},
    )
    assert result.exit_code == cli.STOPPED_BY_GUARD, result.output
    events = lldscope.open_run(run).events()
    kinds = [e["kind"] for e in events]
    assert "rollback" in kinds
    assert "guard_stop" in kinds
    back = next(e for e in events if e["kind"] == "rollback")
    assert back["to_step"] <= back["step"] + 1 - 8
    assert "rolled back to the weights before step" in result.stderr
