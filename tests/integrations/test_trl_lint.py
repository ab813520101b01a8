"""Nothing is found in a sound training by TRL's own GRPOTrainer; what is found has TRL's names."""

from __future__ import annotations

from typing import Any

import pytest
from trl_tiny import make, reward

import lldscope
from lldscope.integrations.trl import instrument
from lldscope.lint import examine


def length(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [len(ids) / 8 for ids in completion_ids]


def train(folder, after=lambda trainer: None, resume=False, **settings):
    trainer = make(folder, **settings)
    instrument(trainer, folder / "run", tokens_every=1, resume=resume)
    after(trainer)
    trainer.train()
    with lldscope.open_run(folder / "run") as run:
        return {finding.check: finding for finding in examine(run).findings}


def test_nothing_is_found_in_a_sound_training(tmp_path):
    assert train(tmp_path, reward_funcs=[reward, length], reward_weights=[1.0, 0.5]) == {}


@pytest.mark.slow
def test_the_settings_are_named_as_trl_names_them(tmp_path):
    finding = train(tmp_path, after=lambda t: setattr(t, "scale_rewards", "none"))
    assert finding["advantage-scale"].settings["scale_rewards"] == "group"
