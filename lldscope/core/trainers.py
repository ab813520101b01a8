"""Other trainers: how to recognize their logs, their names for settings, how to record them.

`lldscope diagnose` translates our names of settings to theirs by `SETTINGS`; the trainer's hint for
an unknown name translates theirs to ours. The names come from the sources named here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

# Ours → each trainer's. TRL 1.16 (GRPOConfig), verl 0.9, OpenRLHF 0.11, SkyRL 0.3, AReaL 1.0,
# NeMo-RL (examples/configs/grpo_math_1B.yaml), slime (its flags), ROLL e25f5fa, Tinker 0.6.
SETTINGS: dict[str, dict[str, str]] = {
    "lr": {
        "trl": "learning_rate", "verl": "actor_rollout_ref.actor.optim.lr",
        "openrlhf": "actor.adam.lr", "skyrl": "trainer.policy.optimizer_config.lr",
        "areal": "actor.optimizer.lr", "nemo-rl": "policy.optimizer.kwargs.lr", "slime": "--lr",
        "roll": "actor_train.training_args.learning_rate", "tinker": "learning_rate",
    },
    "clip_high": {
        "trl": "epsilon_high", "verl": "actor_rollout_ref.actor.clip_ratio_high",
        "openrlhf": "actor.eps_clip_low_high", "skyrl": "trainer.algorithm.eps_clip_high",
        "areal": "actor.eps_clip_higher", "nemo-rl": "loss_fn.ratio_clip_max",
        "slime": "--eps-clip-high", "roll": "pg_clip_high",
    },
    "kl_coefficient": {
        "trl": "beta", "verl": "actor_rollout_ref.actor.kl_loss_coef",
        "openrlhf": "algo.kl.init_coef", "skyrl": "trainer.algorithm.kl_loss_coef",
        "areal": "actor.kl_ctl", "nemo-rl": "loss_fn.reference_policy_kl_penalty",
        "slime": "--kl-loss-coef", "roll": "kl_loss_coef", "tinker": "kl_penalty_coef",
    },
    "sequence_tokens": {
        "trl": "max_completion_length", "verl": "data.max_response_length",
        "openrlhf": "rollout.max_new_tokens",
        "skyrl": "generator.sampling_params.max_generate_length",
        "areal": "gconfig.max_new_tokens", "nemo-rl": "policy.generation.max_new_tokens",
        "slime": "--rollout-max-response-len", "roll": "response_length", "tinker": "max_tokens",
    },
    "updates": {
        "trl": "num_iterations", "verl": "actor_rollout_ref.actor.ppo_epochs",
        "openrlhf": "train.max_epochs", "skyrl": "trainer.update_epochs_per_batch",
        "areal": "actor.ppo_n_minibatches", "slime": "--num-steps-per-rollout",
        "roll": "ppo_epochs", "tinker": "num_substeps",
    },
    "group_size": {"trl": "num_generations", "verl": "actor_rollout_ref.rollout.n",
                   "nemo-rl": "grpo.num_generations_per_prompt",
                   "roll": "num_return_sequences_in_group"},
    "grad_clip": {"trl": "max_grad_norm", "nemo-rl": "policy.max_grad_norm"},
    "clip_low": {"trl": "epsilon", "verl": "actor_rollout_ref.actor.clip_ratio_low",
                 "roll": "pg_clip_low"},
    "dual_clip": {"trl": "delta", "verl": "actor_rollout_ref.actor.clip_ratio_c",
                  "nemo-rl": "loss_fn.ratio_clip_c"},
    "entropy_coefficient": {"verl": "actor_rollout_ref.actor.entropy_coeff",
                            "slime": "--entropy-coef", "roll": "entropy_loss_coef"},
    "aggregation": {"trl": "loss_type", "verl": "actor_rollout_ref.actor.loss_agg_mode"},
    "advantage_std": {"trl": "scale_rewards", "verl": "algorithm.norm_adv_by_std_in_grpo"},
    "top_p": {"trl": "top_p", "verl": "actor_rollout_ref.rollout.top_p"},
    "steps": {"trl": "max_steps", "verl": "trainer.total_training_steps",
              "nemo-rl": "grpo.max_num_steps"},
}

# Our name → further names, from TRL, verl, transformers and everyday language. Such a setting does
# the same as ours, or is the one to look at; units may differ.
_WORDS = {
    "warmup_steps": "warmup_ratio lr_warmup_steps lr_warmup_steps_ratio",
    "steps": "epochs num_train_epochs total_epochs",
    "group_size": "n",
    "prompts": "batch_size generation_batch_size train_batch_size",
    "micro_tokens": "per_device_train_batch_size gradient_accumulation_steps "
                    "ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu",
    "updates": "steps_per_generation ppo_mini_batch_size",
    "kl_coefficient": "kl_coef",
    "clip_low": "clip_ratio",
    "objective": "importance_sampling_level",
    "importance_sampling": "vllm_importance_sampling_mode",
    "importance_cap": "vllm_importance_sampling_cap",
    "max_turns": "max_tool_calling_iterations max_assistant_turns",
    "model": "model_name_or_path",
    "dtype": "bf16 torch_dtype",
    "optimizer": "optim",
    "engine": "use_vllm vllm_mode",
    "engine_memory": "vllm_gpu_memory_utilization gpu_memory_utilization",
    "eval_every": "eval_steps test_freq",
    "checkpoint_every": "save_steps save_freq",
    "checkpoints_kept": "save_total_limit max_actor_ckpt_to_keep",
    "data": "dataset_name train_files",
    "eval_data": "val_files",
    "name": "run_name experiment_name",
}


def ours(all_ours: Collection[str]) -> dict[str, str]:
    """Other trainers' names of settings (the last part of each) → our name, without names that are
    also among `all_ours`."""
    words = {word: name for name, text in _WORDS.items() for word in text.split()}
    theirs = {
        full.rpartition(".")[2].lstrip("-").replace("-", "_"): name
        for name, by_trainer in SETTINGS.items()
        for full in by_trainer.values()
    }
    return {word: name for word, name in (theirs | words).items() if word not in all_ours}


@dataclass(frozen=True)
class Trainer:
    """A trainer: its name, the two lines that record it, and a regular expression for the metrics
    or row fields that only this trainer writes."""

    id: str
    name: str
    record: tuple[str, ...] = (
        'recorder = lldscope.Recorder("runs/mine")',
        "recorder.actions(step=…, logp_old_sum=…, logp_post_sum=…, …)  # docs/integrations.md",
    )
    marks: re.Pattern[str] = field(default=re.compile("(?!)"))

    def setting(self, name: str) -> str | None:
        """This trainer's name for one of our settings; None if it has none or the name is
        unknown."""
        if self.id == "lldscope":
            return name
        of_trl = self.id in ("trl", "unsloth", "ms-swift")  # built on TRL
        theirs = SETTINGS.get(name, {}).get("trl" if of_trl else self.id)
        return f"GRPOConfig.{theirs}" if theirs and of_trl else theirs


# A log was written by the first trainer whose marks match one of its names.
TRAINERS = (
    Trainer("skyrl", "SkyRL", marks=re.compile(
        r"policy/(final_loss|policy_loss|raw_grad_norm)|reward/avg_raw_reward"
    )),
    Trainer("areal", "AReaL", marks=re.compile("ppo_actor/")),
    Trainer("roll", "ROLL", marks=re.compile(r"actor/(ppo_ratio_|approxkl|policykl)|system/step$")),
    Trainer("slime", "slime", marks=re.compile("rollout/raw_reward|train_rollout_logprob")),
    Trainer("openrlhf", "OpenRLHF", marks=re.compile(
        "(train/)?(actor_grad_norm|ppo_clip_ratio|rollout/reward_mean)"
    )),
    Trainer("nemo-rl", "NeMo-RL", marks=re.compile(
        "(train/)?(approx_entropy|gen_kl_error|token_mult_prob_error|mean_gen_tokens_per_sample)"
        "|token_loss_mask"
    )),
    Trainer("tinker", "Tinker", marks=re.compile("env/all/|progress/batch|optim/kl_sample_train")),
    Trainer("prime-rl", "prime-rl", marks=re.compile("mismatch_kl/|reward/all/|train/agg/")),
    Trainer("ms-swift", "ms-swift", marks=re.compile(".*(rollout_correction/|entropy/max$)")),
    Trainer("unsloth", "Unsloth", marks=re.compile("(train/)?sampling/rollout_kl_")),
    Trainer(
        "trl", "TRL",
        ("from lldscope.integrations.trl import instrument", 'instrument(trainer, "runs/mine")'),
        re.compile(r"(train/)?(completions/|completion_length$|frac_reward_zero_std|rewards/"
                   "|clip_ratio/)|completion$"),
    ),
    Trainer(
        "verl", "verl",
        ("trainer.v1.trainer_mode=lldscope_sync", "+trainer.lldscope.path=runs/mine"),
        re.compile("actor/|critic/|val-core/|response_length/|gts$"),
    ),
    Trainer("lldscope", "lldscope"),
)
OTHER = Trainer("other", "your own loop")


def trainer_of(names: Iterable[str]) -> Trainer:
    """The trainer that writes these metrics or rollout fields."""
    names = sorted(names)
    matches = (t for t in TRAINERS if any(t.marks.match(name) for name in names))
    return next(matches, OTHER)


def trainer_called(text: str | None) -> Trainer:
    """The trainer that a run.json names, such as "TRL 1.16.0" or an id."""
    word = (text or "").casefold()
    matches = (t for t in TRAINERS if word.startswith((t.id, t.name.casefold())))
    return next(matches, OTHER)
