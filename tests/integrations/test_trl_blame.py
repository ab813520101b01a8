"""blame=True: at an alarm TRL's own update is made again in other ways, and nothing is changed."""

from __future__ import annotations

import pytest
import torch
from scripted_monitor import Script
from trl_tiny import make, model, weights

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.explore.experiments import blame_answer
from lldscope.integrations.common import alarms
from lldscope.integrations.trl import blame, instrument
from lldscope.recording.blame_answer import read_answer

FOUR = {"steps_per_generation": 4, "per_device_train_batch_size": 4, "num_generations": 4}
"""Sixteen rollouts in four updates."""


@pytest.fixture(autouse=True)
def alarm_at_the_second_look(monkeypatch):
    monkeypatch.setattr(alarms, "Monitor", Script)
    monkeypatch.setattr(blame, "DRAWS", 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "options", "expected"),
    [
        ({**FOUR, "lr_scheduler_type": "linear", "max_steps": 12}, {"on_alarm": "save"},
         {"LLDS, action gate", "one update instead of many"}),
        ({**FOUR, "max_steps": 12}, {"llds": "token"}, {"without LLDS"}),
        ({"beta": 0.1, "gradient_accumulation_steps": 2, "max_steps": 3}, {}, {"without KL"}),
    ],
)
def test_the_update_is_repeated_and_the_training_goes_on_to_the_bit(
    tmp_path, settings, options, expected
):
    alone = make(tmp_path / "alone", **settings)
    instrument(alone, tmp_path / "without", **options)
    alone.train()
    trainer = make(tmp_path / "with", **settings)
    instrument(trainer, tmp_path / "run", blame=True, rescore_share=1.0, **options)
    trainer.train()
    assert torch.equal(weights(trainer), weights(alone))
    assert trainer._step == alone._step
    assert trainer.state.num_input_tokens_seen == alone.state.num_input_tokens_seen

    answer = read_answer(tmp_path / "run")
    assert answer.step == 1, "the alarm came at the second step"
    results = {r.name: r for r in answer.variants}
    with lldscope.open_run(tmp_path / "run") as run:
        ((delta,),) = run.rows("SELECT delta_correct FROM signals WHERE step = 1").rows
        assert [e["sentence"] for e in run.events() if e["kind"] == "blame"] == [answer.sentence]
        assert blame_answer(run).sentence == answer.sentence
        assert not any(e["kind"] == "not_recorded" and e.get("failed") for e in run.events())
    was = results["as it was"]
    assert was.measures["delta_correct"] == pytest.approx(delta, abs=1e-4)
    assert was.delta is not None
    assert was.change == (0, 0, 0)
    assert results["half the learning rate"].measures["kl"] < was.measures["kl"]
    assert expected <= set(results)


@pytest.mark.slow
def test_left_out_rollouts_give_no_gradient(tmp_path):
    """By hand: with all rollouts left out nothing moves but by weight decay, which is 0 here."""
    trainer = make(tmp_path, **FOUR, max_steps=8)
    instrument(trainer, tmp_path / "run", blame=True)
    parts = {}
    original = blame.Blamer._experiment

    def experiment(self, rollouts):
        after = weights(self._trainer)
        self._before.restore()
        before = weights(self._trainer)
        draw = self._draw()
        for leave_out in ("negative", "positive", "unlikely"):
            weights_of_rows = blame._kept_rows(leave_out, draw)
            advantages = draw.inputs["advantages"]
            parts[leave_out] = (advantages * (1 - weights_of_rows))
        recorded = blame._Draw(self._trainer._buffered_inputs, draw.inputs, draw.correct,
                               draw.old, blame.ROWS)
        zero = [x | {"advantages": 0 * x["advantages"]} for x in recorded.micro_batches]
        self._update(blame.Change("nothing"), blame._Draw(
            zero, draw.inputs, draw.correct, draw.old, blame.ROWS))
        assert torch.equal(weights(self._trainer), before)
        assert not torch.equal(after, before)
        return original(self, rollouts)

    blame.Blamer._experiment = experiment
    try:
        trainer.train()
    finally:
        blame.Blamer._experiment = original
    assert (parts["negative"] <= 0).all()
    assert (parts["positive"] >= 0).all()
    assert (parts["unlikely"] <= 0).all()
    assert 0 < (parts["unlikely"] < 0).sum() < (parts["negative"] < 0).sum()


@pytest.mark.parametrize(
    ("settings", "change", "words"),
    [
        ({"gradient_accumulation_steps": 4}, None, "over several rollout batches"),
        ({}, "memory", "memory are free"),
        ({}, "vllm", "use_vllm=True"),
        ({}, "processes", "several processes"),
    ],
)
def test_what_cannot_be_repeated_is_refused_before_the_training(
    tmp_path, settings, change, words, monkeypatch
):
    trainer = make(tmp_path, policy=model(), **settings)
    if change == "memory":
        monkeypatch.setattr(blame, "free_memory", lambda: 1000)
    elif change == "vllm":
        trainer.use_vllm = True
    elif change == "processes":
        monkeypatch.setattr(type(trainer.accelerator), "num_processes", 2)
    with pytest.raises(LldscopeError, match=words):
        instrument(trainer, tmp_path / "run", blame=True)
    assert not (tmp_path / "run").exists()
