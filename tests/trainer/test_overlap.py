"""Rollouts sampled during the updates of the step before."""

from __future__ import annotations

import threading

import pytest
import torch
from keeper import SMALL, Keeper, train
from lldscope_trainer.config import load_config
from lldscope_trainer.preflight import warnings
from lldscope_trainer.train import Trainer

from lldscope.core.errors import UsageError

OVERLAP = [*SMALL, "eval_questions=0", "overlap_rollouts=true", "lr=1e-3"]


def test_a_step_is_sampled_with_the_weights_before_the_last_updates():
    keeper = Keeper()
    trainer = Trainer(load_config("tiny", [*OVERLAP, "steps=4", "checkpoint_every=3"]), keeper)
    weight = trainer.policy.model.get_output_embeddings().weight
    records, before = [], []
    play = trainer._players.sampling.play
    copied = trainer._players.engine.policy.model.get_output_embeddings().weight

    def watched(*arguments):
        records.append(copied.detach().clone())
        return play(*arguments)

    trainer._players.sampling.play = watched
    for step in range(4):
        before.append(weight.detach().clone())
        trainer.step(step)
    trainer.close()
    # A checkpoint comes before step 3, which is sampled anew.
    for step, made_from in enumerate([0, 0, 1, 3]):
        assert torch.equal(records[step], before[made_from]), step
    assert not torch.equal(before[0], before[1])
    versions = [row["policy_version"] for row in keeper.rows("steps")]
    assert versions == [0, 0, 4, 12]
    info = {(row["step"], row["policy_version"]) for row in keeper.rows("responses")}
    assert info == set(enumerate(versions))
    gaps: dict[int, list[float]] = {}
    for row in keeper.rows("actions"):
        gap = abs(row["logp_behaviour_sum"] - row["logp_old_sum"])
        gaps.setdefault(row["step"], []).append(gap)
    # `old` is the policy's that is updated, `behaviour` that which sampled.
    worst = [max(gaps[step]) for step in range(4)]
    assert max(worst[0], worst[3]) < 1e-3 < 1e-2 < min(worst[1], worst[2])


def test_sampling_and_updates_go_on_together():
    trainer = Trainer(load_config("tiny", [*OVERLAP, "steps=2"]), Keeper())
    sampling, updating = threading.Event(), threading.Event()
    play, run = trainer._players.sampling.play, trainer.updater.run
    met = []

    def played(*arguments):
        if trainer.next_step == 0 and sampling.is_set():
            met.append(updating.wait(300))  # in the thread: for the updates of step 0
        sampling.set()
        return play(*arguments)

    def updates(*arguments, **options):
        updating.set()
        return run(*arguments, **options)

    trainer._players.sampling.play, trainer.updater.run = played, updates
    trainer.step(0)
    assert met == [True]
    trainer.close()


def test_what_was_sampled_ahead_is_given_up_with_the_weights(tmp_path):
    """A resumed run, and one that was rolled back, sample the step anew."""
    config = load_config("tiny", [*OVERLAP, "steps=4", "checkpoint_every=2"])
    straight, first, second = Keeper(), Keeper(), Keeper()
    from lldscope_trainer.checkpoint import find_checkpoint

    train(config, straight)
    train(config.replace(steps=2), first, run_dir=tmp_path)
    train(config, second, run_dir=tmp_path, checkpoint=find_checkpoint(tmp_path))
    for table in ("updates", "responses", "actions"):
        expected = [row for row in straight.rows(table) if row["step"] >= 2]
        assert second.rows(table) == expected, table
    trainer = Trainer(config.replace(checkpoint_every=0), Keeper())
    trainer.step(0)
    trainer.restore(find_checkpoint(tmp_path))
    assert trainer._ahead.take(1) is None
    trainer.close()


def test_it_is_refused_where_the_engine_sleeps_and_warned_of_where_nothing_corrects():
    with pytest.raises(UsageError, match="engine=vllm, which sleeps"):
        load_config("tiny", ["overlap_rollouts=true", "engine=vllm"])
    (message,) = warnings(load_config("tiny", ["overlap_rollouts=true"]))
    assert "importance_sampling=token_truncate" in message
    corrected = ["overlap_rollouts=true", "importance_sampling=token_truncate"]
    assert warnings(load_config("tiny", corrected)) == []
