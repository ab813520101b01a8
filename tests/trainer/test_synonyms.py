"""Other trainers' names for settings."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest
from lldscope_trainer.config import TrainConfig
from lldscope_trainer.settings import suggest

from lldscope.core.trainers import SETTINGS, ours

# TRL 1.16's own names among them.
TRLS = """
    learning_rate max_grad_norm max_steps num_train_epochs num_generations generation_batch_size
    per_device_train_batch_size gradient_accumulation_steps num_iterations steps_per_generation beta
    epsilon epsilon_high delta loss_type importance_sampling_level scale_rewards
    vllm_importance_sampling_mode vllm_importance_sampling_cap max_completion_length
    max_tool_calling_iterations bf16 optim use_vllm vllm_mode
    vllm_gpu_memory_utilization eval_steps save_steps save_total_limit
    run_name
"""


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
        ("num_generations", "group_size"),
        ("beta", "kl_coefficient"),
        ("max_steps", "steps"),
        ("batch_size", "prompts"),
        ("epochs", "steps"),
        ("--learning-rate", "lr"),
        ("actor_rollout_ref.rollout.n", "group_size"),
        ("actor_rollout_ref.actor.optim.lr", "lr"),
        ("llds_coeficient", "llds_coefficient"),
        ("zzz", None),
    ],
)
def test_what_is_suggested(key, setting):
    assert suggest(key, TrainConfig.names()) == setting


def test_trl_has_the_names_that_are_taken_from_it():
    trl = find_spec("trl")
    if trl is None or trl.origin is None:
        pytest.skip("trl: not installed")
    transformers = find_spec("transformers")
    assert transformers is not None
    assert transformers.origin is not None
    files = (
        (trl.origin, "trainer/grpo_config.py", "GRPOConfig"),
        (transformers.origin, "training_args.py", "TrainingArguments"),
    )
    names = set()
    for origin, file, owner in files:
        tree = ast.parse((Path(origin).parent / file).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == owner:
                names |= {n.target.id for n in node.body  # type: ignore[union-attr]
                          if isinstance(n, ast.AnnAssign)}
    assert set(TRLS.split()) <= set(SYNONYMS)
    assert set(TRLS.split()) - names == set()
