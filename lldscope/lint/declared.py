"""What the configuration of a run declares, by the names of its own trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core import trainers
from ..explore.settings import pairs

_VERL = "actor_rollout_ref"
_NAMES = ("advantage_std", "aggregation", "group_size", "kl_coefficient", "lr", "steps", "top_p")
# What is declared → the settings that declare it: of lldscope's trainer, of TRL's GRPOConfig, and
# of verl, whose names have dots.
SETTINGS: dict[str, tuple[str, ...]] = {
    name: (name, *(trainers.SETTINGS[name][other] for other in ("trl", "verl"))) for name in _NAMES
} | {
    "estimator": ("algorithm.adv_estimator", "multi_objective_aggregation"),
    "schedule": ("lr_scheduler_type", f"{_VERL}.actor.optim.lr_scheduler_type"),
    "warmup": ("warmup_steps", f"{_VERL}.actor.optim.lr_warmup_steps"),
    "warmup_ratio": (f"{_VERL}.actor.optim.lr_warmup_steps_ratio",),
    "temperature": ("temperature", f"{_VERL}.rollout.temperature"),
    "top_k": ("top_k", f"{_VERL}.rollout.top_k"),
    "reward_weights": ("reward_weights",),
    "reward_functions": ("reward_functions",),
}
GROUP_RELATIVE = (
    "grpo", "grpo_vectorized", "grpo_passk", "rloo", "gspo", "dr_grpo", "sum_then_normalize",
)


@dataclass(frozen=True)
class Setting:
    """A declared value, and the name that it has in the trainer's own configuration."""

    name: str
    value: Any


def declared(config: Any) -> dict[str, Setting]:
    """The settings of `SETTINGS` that a configuration has; nested names have dots."""
    values = dict(pairs(config))
    answer = {}
    for fact, names in SETTINGS.items():
        name = next((name for name in names if values.get(name) is not None), None)
        if name is not None:
            answer[fact] = Setting(name, values[name])
    if "corpus" in values:  # in lldscope's trainer, `top_k` counts the documents of a search
        answer.pop("top_k", None)
    return answer


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
    if warmup < 0:  # in verl a share of all steps then holds
        share = number(settings, "warmup_ratio")
        warmup = -1.0 if share is None or (share and not total) else int(share * (total or 0))
    if peak is None or warmup < 0 or warmup != int(warmup):
        return None
    step = max(step, 0)
    if kind == "constant" and setting is not None and not setting.name.startswith(_VERL):
        return peak
    if step < warmup:
        return peak * step / warmup if setting is not None else peak * (step + 1) / warmup
    if kind in ("constant", "constant_with_warmup"):  # verl warms up to both
        return peak
    if total is None or total <= warmup or kind not in ("linear", "cosine"):
        return None
    done = min(1.0, (step - warmup) / (total - warmup))
    return peak * (1 - done if kind == "linear" else (1 + math.cos(math.pi * done)) / 2)
