"""The guard: alarms become actions, and the actions really happen."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from keeper import SMALL, Keeper
from lldscope_trainer import cli
from lldscope_trainer.config import load_config
from lldscope_trainer.guard import Guard
from lldscope_trainer.loop import train
from safetensors.torch import load_file

import lldscope


def alarm(rule: str = "lld-decay", state: str = "firing", step: int = 2) -> dict:
    return {
        "rule": rule, "severity": "warning", "state": state, "step": step, "message": "Δ fell",
    }  # fmt: skip


class Script:
    """A monitor that says, at its n-th look, what the test wants said."""

    def __init__(self, **news: list[dict]) -> None:
        self.news = {int(k.removeprefix("look")): v for k, v in news.items()}
        self.looks = 0

    def look(self):
        self.looks += 1
        return "decay", self.news.get(self.looks, [])

    def close(self) -> None: ...


def test_what_it_decides():
    guard = Guard("stop,llds,save", "lld-decay, lld-collapse")
    assert guard.decide([]) == ((), None)
    assert guard.decide([alarm("truncation")]) == ((), None)
    assert guard.decide([alarm()]) == (("save", "llds", "stop"), "lld-decay")
    assert guard.firing == ("lld-decay", "truncation")
    assert guard.decide([alarm(state="resolved")]) == ((), None)
    assert guard.firing == ("truncation",)
    assert Guard("off", "lld-decay").decide([alarm()]) == ((), None)


def test_an_info_is_no_reason_to_call_a_checkpoint_unhealthy():
    guard = Guard("off", "lld-decay")
    guard.decide([alarm("lld-stagnation") | {"severity": "info"}])
    assert guard.firing == ()


def test_rolling_back_takes_weights_and_optimizer_back(tmp_path):
    settings = [*SMALL, "eval_questions=0", "checkpoint_every=2", "guard=rollback,llds",
                "checkpoints_kept=1", "guard_margin=0", "save_policy=true"]  # fmt: skip
    keeper = Keeper()
    # The alarm comes after step 4, the fifth look; the weights go back to those before step 4. The
    # checkpoint that would be due at 6 must not be healthy while the alarm fires.
    train(
        load_config("tiny", [*settings, "steps=5"]), keeper, run_dir=tmp_path,
        monitor=Script(look5=[alarm()]),
    )  # fmt: skip
    assert [e["kind"] for e in keeper.events] == ["checkpoint", "checkpoint", "rollback", "llds"]
    back = keeper.events[2]
    assert (back["step"], back["to_step"], back["rule"]) == (4, 4, "lld-decay")
    saved = load_file(tmp_path / "checkpoints/step-00000004/policy/model.safetensors")
    ended = load_file(tmp_path / "policy/model.safetensors")
    assert all(torch.equal(saved[name], ended[name]) for name in saved)

    going_on = Keeper()
    train(
        load_config("tiny", [*settings, "steps=6"]), going_on, run_dir=tmp_path / "b",
        monitor=Script(look5=[alarm()]),
    )  # fmt: skip
    before, after = going_on.rows("steps")[4], going_on.rows("steps")[5]
    assert before["loss_llds"] is None
    assert after["loss_llds"] is not None, "the guard switched LLDS on"
    assert after["policy_version"] == before["policy_version"], "the weights are those of step 4"


def test_without_a_healthy_checkpoint_it_says_so(tmp_path):
    keeper = Keeper()
    reports = []
    train(
        load_config("tiny", [*SMALL, "eval_questions=0", "checkpoint_every=2", "guard=rollback",
                             "steps=1"]),
        keeper, run_dir=tmp_path, monitor=Script(look1=[alarm()]), on_step=reports.append,
    )  # fmt: skip
    assert [e["kind"] for e in keeper.events] == ["rollback_failed"]
    assert "no healthy checkpoint" in reports[0].notes[0]


def test_raising_lambda_of_a_run_that_has_llds_already(tmp_path):
    keeper = Keeper()
    train(
        load_config("tiny", [*SMALL, "eval_questions=0", "guard=llds", "guard_coefficient=0.5",
                             "llds=response", "llds_coefficient=0.1", "steps=2"]),
        keeper, monitor=Script(look1=[alarm()]),
    )  # fmt: skip
    (event,) = keeper.events
    assert (event["kind"], event["gate"], event["coefficient"]) == ("llds", "response", 0.5)


def test_stopping_ends_the_run_as_stopped_and_can_be_resumed(tmp_path):
    run = tmp_path / "run"
    arguments = [*SMALL, "eval_questions=0", "guard=stop", "steps=9", "--run", str(run)]
    monitor = Script(look2=[alarm("lld-collapse") | {"severity": "critical"}])
    result = CliRunner().invoke(cli.train, ["tiny", *arguments], obj={"monitor": lambda _: monitor})
    assert result.exit_code == cli.STOPPED_BY_GUARD, result.output
    assert "the guard stopped the run at step 1: lld-collapse fires" in result.stderr
    info = json.loads((run / "run.json").read_text())
    assert info["status"] == "stopped"
    assert "lld-collapse" in info["reason"]
    result = CliRunner().invoke(
        cli.train, ["--resume", "--run", str(run), "guard=off", "steps=3"], obj=None
    )
    assert result.exit_code == 0, result.output
    assert lldscope.open_run(run).signals()["step"].tolist() == [0, 1, 2]


@pytest.mark.slow
def test_a_real_alarm_rolls_a_real_run_back(tmp_path):
    """A learning rate that ruins the tiny policy: the alarm is raised by the analyzer, from rows
    on disk, while training runs."""
    from lldscope.follow import Monitor

    run = tmp_path / "run"
    result = CliRunner().invoke(
        cli.train,
        ["tiny", "prompts=2", "group_size=8", "updates=4", "eval_questions=0", "lr=3e-3",
         "sequence_tokens=160",
         "steps=60", "checkpoint_every=4", "guard=rollback,llds,stop", "tokens_every=0",
         "guard_on=lld-decay,lld-collapse,entropy-surge,reward-crash", "guard_margin=8",
         "--run", str(run)],
        obj={"monitor": lambda path: Monitor(path, every=0.5)},
    )  # fmt: skip
    assert result.exit_code == cli.STOPPED_BY_GUARD, result.output
    events = lldscope.open_run(run).events()
    kinds = [e["kind"] for e in events]
    assert "rollback" in kinds
    assert "guard_stop" in kinds
    back = next(e for e in events if e["kind"] == "rollback")
    assert back["to_step"] <= back["step"] + 1 - 8
    assert "rolled back to the weights before step" in result.stderr
