"""What the configuration of a run declares, by the names of its own trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What is declared → the settings that declare it: of lldscope's trainer, of TRL's GRPOConfig, and
# the last part of verl's names.
SETTINGS: dict[str, tuple[str, ...]] = {
    "estimator": ("adv_estimator",),
    "advantage_std": ("advantage_std", "scale_rewards", "norm_adv_by_std_in_grpo"),
    "group_size": ("group_size", "num_generations", "rollout.n"),
    "aggregation": ("aggregation", "loss_type", "loss_agg_mode"),
    "kl": ("kl_coefficient", "beta", "kl_loss_coef"),
    "lr": ("lr", "learning_rate", "optim.lr"),
    "schedule": ("lr_scheduler_type", "lr_scheduler"),
    "warmup": ("warmup_steps", "lr_warmup_steps"),
    "steps": ("steps", "max_steps", "total_training_steps"),
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "top_k": ("top_k",),
    "reward_weights": ("reward_weights",),
}
GROUP_RELATIVE = ("grpo", "grpo_vectorized", "grpo_passk", "rloo", "gspo", "dr_grpo")


@dataclass(frozen=True)
class Setting:
    """A declared value, and the name that it has in the trainer's own configuration."""

    name: str
    value: Any


def declared(config: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings of `SETTINGS` that a configuration has; nested names have dots."""
    values = dict(_leaves(config, ""))
    answer = {}
    for fact, names in SETTINGS.items():
        for name in names:
            hits = [key for key in values if key == name or key.endswith(f".{name}")]
            # verl repeats `temperature` for validation, `n` for the agent loop: the shortest is it.
            if hits and values[key := min(hits, key=len)] is not None:
                answer[fact] = Setting(key, values[key])
                break
    if "corpus" in values:  # in lldscope's trainer, `top_k` counts the documents of a search
        answer.pop("top_k", None)
    return answer


def _leaves(config: Any, before: str) -> list[tuple[str, Any]]:
    if not isinstance(config, Mapping):
        return []
    pairs: list[tuple[str, Any]] = []
    for key, value in config.items():
        pairs += _leaves(value, f"{before}{key}.") or [(f"{before}{key}", value)]
    return pairs


def number(settings: Mapping[str, Setting], fact: str) -> float | None:
    """A declared number; None where it is not declared, or is no number."""
    setting = settings.get(fact)
    try:
        value = float(setting.value) if setting is not None else math.nan
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def scaled_by_std(settings: Mapping[str, Setting]) -> bool | None:
    """Whether advantages are divided by the standard deviation of the group's rewards; None where
    that is not declared, or another standard deviation is."""
    setting = settings.get("advantage_std")
    if setting is None:
        return None
    text = str(setting.value).lower()
    return True if text in ("true", "group") else False if text in ("false", "none") else None


def group_relative(settings: Mapping[str, Setting]) -> bool:
    """False where an estimator is declared that does not compare the rollouts of a group."""
    setting = settings.get("estimator")
    return setting is None or str(setting.value).lower() in GROUP_RELATIVE


def learning_rate(settings: Mapping[str, Setting], step: int) -> float | None:
    """The declared learning rate of a step; None where its schedule is not one of those known.

    constant, constant_with_warmup, linear and cosine are those of
    `transformers.get_scheduler` (transformers 5, optimization.py), with the warm-up in steps.
    """
    peak, warmup = number(settings, "lr"), number(settings, "warmup") or 0.0
    setting = settings.get("schedule")
    kind = "constant_with_warmup" if setting is None else str(setting.value).rpartition(".")[2]
    kind, total = kind.lower(), number(settings, "steps")
    if peak is None or warmup != int(warmup):
        return None
    if kind == "constant":
        return peak
    if step < warmup:
        return peak * step / warmup if setting is not None else peak * (step + 1) / warmup
    if kind == "constant_with_warmup":
        return peak
    if total is None or total <= warmup or kind not in ("linear", "cosine"):
        return None
    done = min(1.0, (step - warmup) / (total - warmup))
    return peak * (1 - done if kind == "linear" else (1 + math.cos(math.pi * done)) / 2)
