"""Settings: limits, overrides, errors that say what to do."""

from __future__ import annotations

import re

import pytest
from lldscope_trainer.config import TrainConfig, load_config
from lldscope_trainer.settings import describe, shipped, suggest

from lldscope.core.errors import UsageError
from lldscope.core.trainers import SETTINGS, ours


def test_shipped_configurations_load():
    assert {"tiny", "demo"} <= set(shipped())
    for name in shipped():
        assert load_config(name).name == name


def test_file_and_overrides(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("steps: 7\nlr: 1e-3\nllds: off\ndual_clip: none\n")
    config = load_config(path)
    # YAML 1.1 reads 1e-3 as text and a bare off as false.
    assert (config.name, config.steps, config.lr) == ("mine", 7, 1e-3)
    assert (config.llds, config.dual_clip) == ("off", None)
    config = load_config(path, ["llds=action", "advantage_std=false", "dual_clip=3", "steps=9"])
    assert (config.llds, config.advantage_std) == ("action", False)
    assert (config.dual_clip, config.steps) == (3.0, 9)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("lr=0", ["lr=0 is not allowed", "a number > 0"]),
        ("lr=nan", ["lr=nan", "> 0"]),
        ("steps=2.5", ["steps=2.5", "whole number"]),
        ("llds=turn", ["llds=turn", "action"]),
        ("miss_rate=1.5", ["miss_rate=1.5", "from 0 to 1"]),
        ("advantage_std=maybe", ["advantage_std=maybe", "true or false"]),
        ("guard=save,rollback", ["guard=save,rollback", "checkpoint_every"]),
        ("turn_end=length", ["engine=vllm"]),
        ("llds_coeficient=1", ["llds_coeficient", "llds_coefficient"]),
        ("learning", ["key=value"]),
    ],
)
def test_wrong_settings_are_named(override, words):
    with pytest.raises(UsageError) as raised:
        load_config("tiny", [override])
    for word in words:
        assert word in str(raised.value)


def test_every_setting_says_what_it_means():
    for name, field in TrainConfig.model_fields.items():
        assert field.description.endswith("."), name
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| (?:.*?) \|", describe(TrainConfig), re.M))
    assert (rows["llds_dead_band"], rows["dual_clip"], rows["eval_data"]) == (
        "0.0",
        "none",
        "empty",
    )


def test_values_of_another_kind_are_refused_and_none_is_dropped(tmp_path):
    path = tmp_path / "mine.yaml"
    for line in ("lr: true", "steps: false", "name: [a]", "save_policy: 3"):
        path.write_text(line)
        with pytest.raises(UsageError, match=line.partition(":")[0]):
            load_config(path)
    path.write_text("name: 3\nsave_policy: on\nguard: off\n")
    config = load_config(path, ["steps=8.0"])
    assert (config.name, config.save_policy, config.guard, config.steps) == ("3", True, "off", 8)
    with pytest.raises(UsageError, match="lr=0 is not allowed"):
        config.replace(lr=0)


@pytest.mark.parametrize("card", ["80gb", "141gb"])
def test_a_variant_for_a_card_trains_the_same(card):
    """What fits a card differs, what is learned does not."""
    paper, variant = (load_config(f"search-r1-3b{kind}").to_dict() for kind in ("", f"-{card}"))
    changed = {name for name, value in paper.items() if variant[name] != value}
    memory = {"80gb": {"offload_moments", "micro_tokens"}, "141gb": {"engine_memory"}}
    assert changed == {"name", "optimizer"} | memory[card]


def test_a_base_must_be_a_shipped_configuration(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("base: demo\nsteps: 3\n")
    config = load_config(path, ["prompts=4"])
    assert (config.name, config.steps, config.prompts) == ("mine", 3, 4)
    assert config.lr == load_config("demo").lr
    path.write_text("base: mine\n")
    with pytest.raises(UsageError, match="base='mine' is not a built-in configuration"):
        load_config(path)


def test_the_papers_configuration_has_every_hyper_parameter():
    """arXiv 2512.04220 v2 and its reference code; 512 × 5 rollouts in minibatches of 256."""
    config = load_config("search-r1-3b")
    expected = {
        "prompts": 512, "group_size": 5, "updates": 512 * 5 // 256, "micro_tokens": 64 // 4 * 4096,
        "lr": 1e-6, "warmup_steps": round(0.285 * 1005), "weight_decay": 0.01, "steps": 1005,
        "clip_low": 0.2, "clip_high": 0.2, "grad_clip": 1.0, "entropy_coefficient": 0.001,
        "kl_coefficient": 0.001, "temperature": 1.0, "top_p": 1.0, "turn_tokens": 500,
        "observation_tokens": 500, "sequence_tokens": 4096, "max_turns": 3, "top_k": 3,
        "llds": "action", "llds_coefficient": 0.2, "engine": "vllm", "engine_memory": 0.6,
        "eval_every": 50, "checkpoint_every": 50, "dtype": "bfloat16", "objective": "grpo",
        "aggregation": "token-mean", "dual_clip": None, "advantage_std": True,
    }
    assert {name: getattr(config, name) for name in expected} == expected


def test_other_trainers_names_lead_to_a_setting_and_are_none_themselves():
    names = TrainConfig.names()
    assert not set(ours(names)) & set(names)
    for name, theirs in SETTINGS.items():
        assert name in names
        assert all(suggest(one, names) == name for one in theirs.values())


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("--learning-rate", "lr"),
        ("actor_rollout_ref.rollout.n", "group_size"),
        ("llds_coeficient", "llds_coefficient"),
        ("zzz", None),
    ],
)
def test_what_is_suggested(key, setting):
    assert suggest(key, TrainConfig.names()) == setting
