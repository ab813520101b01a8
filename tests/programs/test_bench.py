"""The training benchmarks reach into the trainer: this notices when it has moved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from lldscope_trainer.algorithms import update
from lldscope_trainer.config import load_config
from lldscope_trainer.train import Trainer

import lldscope
from benchmarks import __main__ as everything
from benchmarks import training, trl


def test_the_task_for_trl_has_one_turn_and_rewards_that_differ(tmp_path):
    ours = trl.Ours(trl.Case("short", None, 4, 1), "tiny", trl.draw_questions(1), tmp_path)
    played = []
    play = ours.trainer._players.sampling.play
    ours.trainer._players.sampling.play = lambda *a: played.extend(play(*a)) or played
    ours.step()
    ours.recorder.close()
    assert len(played) == trl.PROMPTS * trl.GROUP
    assert all(len(r.episode.actions) == 1 and r.episode.done for r in played)
    assert {r.episode.reward for r in played} == {0, 1}
    assert ours.recorder.sampled == [sum(a >= 0 for r in played for a in r.action)]


def test_left_padded_batches_come_out_in_our_layout():
    inputs = {
        "prompt_ids": torch.tensor([[0, 5], [6, 7]]),
        "prompt_mask": torch.tensor([[0, 1], [1, 1]]),
        "completion_ids": torch.tensor([[8, 9], [3, 0]]),
        "completion_mask": torch.tensor([[1, 1], [1, 0]]),
        "old_per_token_logps": torch.tensor([[-1.0, -2.0], [-3.0, 99.0]]),
    }
    ids, mask, old = trl.unpadded(inputs)
    assert ids.tolist() == [[5, 8, 9], [6, 7, 3]]
    assert mask.tolist() == [[0, 1, 1], [0, 0, 1]]
    assert old.tolist() == [[0, -1, -2], [0, 0, -3]]


def test_what_the_costs_are_taken_of_is_called_in_a_step(monkeypatch):
    small = ["prompts=2", "group_size=2", "updates=1", "turn_tokens=4", "llds=action",
             "rescore_share=1"]
    trainer = Trainer(load_config("tiny", [*training.FIXED, *small]), lldscope.NullRecorder())
    monkeypatch.setattr(update, "llds_loss", update.llds_loss)  # put back afterwards
    calls, rescores = training.Watched(update, "llds_loss"), training.Watched(trainer, "_rescore")
    trainer.step(0)
    assert any(new.requires_grad for (new, *_), _ in calls.arguments)
    (arguments, _), *others = rescores.arguments
    assert not others
    assert arguments[1].rescored.all()


def test_help_names_every_benchmark(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench", "--help"])
    with pytest.raises(SystemExit):
        everything.main()
    output = capsys.readouterr().out
    folder = Path(everything.__file__).parent
    commands = [p.stem for p in folder.glob("*.py") if "__main__" in p.read_text()]
    others = {"__main__", "importing", "logger_worker", "rival_worker"}
    for name in {*everything.BY_NAME, *commands} - others:
        assert re.search(rf"^  {name} +\S", output, re.M), name
