"""Other trainers' names for settings."""

from __future__ import annotations

import pytest
from lldscope_trainer.config import TrainConfig
from lldscope_trainer.settings import suggest

from lldscope.core.trainers import SETTINGS, ours

SYNONYMS = ours(TrainConfig.names())


def test_each_leads_to_a_setting_and_is_none_itself():
    assert set(SYNONYMS.values()) <= set(TrainConfig.names())
    assert not set(SYNONYMS) & set(TrainConfig.names())


def test_one_table_is_read_in_both_directions():
    for name, theirs in SETTINGS.items():
        assert name in TrainConfig.names()
        assert all(suggest(one, TrainConfig.names()) == name for one in theirs.values())


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("learning_rate", "lr"),
        ("max_steps", "steps"),
        ("--learning-rate", "lr"),
        ("actor_rollout_ref.rollout.n", "group_size"),
        ("llds_coeficient", "llds_coefficient"),
        ("zzz", None),
    ],
)
def test_what_is_suggested(key, setting):
    assert suggest(key, TrainConfig.names()) == setting
