"""Faults put into TRL's own GRPOTrainer are found by name, and nothing is found without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler
from trl import GRPOTrainer
from trl_tiny import make, reward

import lldscope
from lldscope.integrations.trl import instrument
from lldscope.lint import examine


def length(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [len(ids) / 8 for ids in completion_ids]


def nothing(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [0.0] * len(completion_ids)


class Faulty(GRPOTrainer):
    """A trainer whose rollout batches `change` alters before they are trained on."""

    change: Any = None
    entropy_scale = 1.0

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.change is not None:
            self.change(output)
        return output

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        logps, entropies, *rest = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        scaled = None if entropies is None else self.entropy_scale * entropies
        return (logps, scaled, *rest)


class Ungrouped(Faulty):
    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(self.train_dataset)


def shift(output):
    output["advantages"] = output["advantages"] + 0.3


def turn(output):
    output["advantages"] = -output["advantages"]


def amplify_noise(output):
    a = output["advantages"]
    output["advantages"] = torch.where(a == 0, 0.5 - torch.arange(len(a)) % 2, a)


def fail(output):
    """The generation of the rollout with the largest advantage came back empty."""
    output["completion_mask"][output["advantages"].abs().argmax()] = 0


def engine(change):
    def changed(output):
        output["sampling_per_token_logps"] = change(output["old_per_token_logps"])

    return changed


MANY_TOKENS = {"max_steps": 20, "max_completion_length": 24, "learning_rate": 1e-4}
FAULTS: dict[str, dict[str, Any]] = {
    "group-size": {"before": lambda t: setattr(t.args, "num_generations", 8)},
    "group-prompt": {"kind": Ungrouped},
    "advantage-scale": {"after": lambda t: setattr(t, "scale_rewards", "none")},
    "advantage-offset": {"change": shift},
    "advantage-order": {"change": turn},
    "advantage-without-signal": {"change": amplify_noise, "reward_funcs": nothing},
    "empty-response": {"change": fail},
    "lr-schedule": {"after": lambda t: setattr(t.args, "lr_scheduler_type", "cosine")},
    "entropy-bound": {"after": lambda t: setattr(t, "entropy_scale", 0.05)},
    "engine-slope": {"change": engine(lambda old: 1.6 * old), **MANY_TOKENS},
    "kept-mass": {"change": engine(lambda old: old + 0.1), **MANY_TOKENS},
    "confident-disagreement": {"change": engine(lambda old: torch.full_like(old, -0.1))},
}


def train(folder, kind=Faulty, change=None, before=None, after=None, resume=False, **settings):
    trainer = make(folder, kind=kind, **settings)
    if change is not None:
        trainer.change = change
    (before or (lambda t: None))(trainer)
    instrument(trainer, folder / "run", tokens_every=1, resume=resume)
    (after or (lambda t: None))(trainer)
    trainer.train()
    with lldscope.open_run(folder / "run") as run:
        return {finding.check: finding for finding in examine(run).findings}


@pytest.mark.slow
@pytest.mark.parametrize("check", FAULTS)
def test_a_fault_in_trl_is_found_by_name(check, tmp_path):
    findings = train(tmp_path, **FAULTS[check])
    assert check in findings
    assert findings[check].evidence


def test_nothing_is_found_in_a_sound_training(tmp_path):
    assert train(tmp_path, reward_funcs=[reward, length], reward_weights=[1.0, 0.5]) == {}


@pytest.mark.slow
def test_another_order_of_prompts_after_a_resume_is_found(tmp_path):
    train(tmp_path)
    assert set(train(tmp_path, seed=6, resume=True)) == {"resume-order"}


@pytest.mark.slow
def test_the_settings_are_named_as_trl_names_them(tmp_path):
    finding = train(tmp_path, after=lambda t: setattr(t, "scale_rewards", "none"))
    assert finding["advantage-scale"].settings["scale_rewards"] == "group"
