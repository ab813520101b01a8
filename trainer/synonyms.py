"""What other trainers call this trainer's settings, for the hint at a name that is not known.

TRL 1.16 (`GRPOConfig`, with transformers' `TrainingArguments` and `ModelConfig`) and verl 0.9 (the
last part of a name with dots); a few plain words. A setting named here does the same or is what to
look at; units may differ.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

SYNONYMS = {
    "learning_rate": "lr",
    "warmup_ratio": "warmup_steps",
    "lr_warmup_steps": "warmup_steps",
    "lr_warmup_steps_ratio": "warmup_steps",
    "max_grad_norm": "grad_clip",
    "max_steps": "steps",
    "total_training_steps": "steps",
    "epochs": "steps",
    "num_train_epochs": "steps",
    "total_epochs": "steps",
    "num_generations": "group_size",
    "n": "group_size",  # verl's actor_rollout_ref.rollout.n
    "batch_size": "prompts",
    "generation_batch_size": "prompts",
    "train_batch_size": "prompts",
    "per_device_train_batch_size": "micro_batch",
    "gradient_accumulation_steps": "micro_batch",
    "ppo_micro_batch_size_per_gpu": "micro_batch",
    "ppo_max_token_len_per_gpu": "micro_tokens",
    "num_iterations": "updates",
    "steps_per_generation": "updates",
    "ppo_epochs": "updates",
    "ppo_mini_batch_size": "updates",
    "beta": "kl_coefficient",
    "kl_coef": "kl_coefficient",
    "kl_loss_coef": "kl_coefficient",
    "entropy_coef": "entropy_coefficient",
    "entropy_coeff": "entropy_coefficient",
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "clip_ratio": "clip_low",
    "clip_ratio_low": "clip_low",
    "clip_ratio_high": "clip_high",
    "clip_ratio_c": "dual_clip",
    "delta": "dual_clip",
    "loss_type": "aggregation",
    "loss_agg_mode": "aggregation",
    "importance_sampling_level": "objective",
    "scale_rewards": "advantage_std",
    "norm_adv_by_std_in_grpo": "advantage_std",
    "vllm_importance_sampling_mode": "importance_sampling",
    "vllm_importance_sampling_cap": "importance_cap",
    "max_completion_length": "sequence_tokens",
    "max_response_length": "sequence_tokens",
    "max_tool_calling_iterations": "max_turns",
    "max_assistant_turns": "max_turns",
    "model_name_or_path": "model",
    "bf16": "dtype",
    "torch_dtype": "dtype",
    "lora_r": "lora_rank",
    "optim": "optimizer",
    "use_vllm": "engine",
    "vllm_mode": "engine",
    "vllm_server_base_url": "engine_url",
    "vllm_gpu_memory_utilization": "engine_memory",
    "gpu_memory_utilization": "engine_memory",
    "eval_steps": "eval_every",
    "test_freq": "eval_every",
    "save_steps": "checkpoint_every",
    "save_freq": "checkpoint_every",
    "save_total_limit": "checkpoints_kept",
    "max_actor_ckpt_to_keep": "checkpoints_kept",
    "dataset_name": "data",
    "train_files": "data",
    "val_files": "eval_data",
    "run_name": "name",
    "experiment_name": "name",
}


def suggest(key: str, names: Collection[str]) -> str | None:
    """The setting among `names` that someone who wrote `key` may have meant."""
    last = key.rpartition(".")[2].lower().strip("-+").replace("-", "_")
    if last in names:
        return last
    if last in SYNONYMS:
        return SYNONYMS[last]
    return next(iter(difflib.get_close_matches(key, names, n=1)), None)
