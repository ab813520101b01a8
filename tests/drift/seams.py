"""What each adapter of lldscope/integrations hooks into, file by file."""

from __future__ import annotations

from typing import NamedTuple


class Seam(NamedTuple):
    """A function, method or class in a file of a package, with those of its arguments that an
    adapter names."""

    file: str
    name: str
    reads: tuple[str, ...] = ()


def _seams(file: str, *lines: str) -> list[Seam]:
    """Lines are `name` or `name: what is read`."""
    parts = [line.partition(":") for line in lines]
    return [Seam(file, name, tuple(reads.split())) for name, _, reads in parts]


SEAMS: dict[str, list[Seam]] = {
    "trl": _seams(
        "trl/trainer/grpo_trainer.py",
        "GRPOTrainer._generate_and_score_completions: inputs",
        "GRPOTrainer._calculate_rewards: inputs prompts completions completion_ids_list",
        "GRPOTrainer.compute_loss: model inputs",
        "GRPOTrainer._get_per_token_logps_and_entropies: model input_ids attention_mask"
        " logits_to_keep batch_size compute_entropy",
        "GRPOTrainer.training_step",
        "GRPOTrainer.log: logs",
    ),
    "verl": _seams(
        "verl/trainer/ppo/v1/trainer_base.py",
        "PPOTrainer.fit",
        "PPOTrainer._update_actor: batch metrics",
        "PPOTrainer._validate",
        "PPOTrainer.on_step_end",
        "PPOTrainer._save_checkpoint",
        "register_trainer",
    )
    + _seams("verl/trainer/ppo/core_algos.py", "register_policy_loss", "get_policy_loss_fn")
    + _seams("verl/workers/config/actor.py", "PolicyLossConfig")
    + _seams("verl/workers/utils/padding.py", "response_from_nested"),
}
"""By the name of the package on PyPI. prime-rl is not there, and the packages `nemo-rl` and `slime`
there are others or empty."""
