"""The declared settings of a run, under the names of its own trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core import trainers
from ..explore.settings import pairs

# What is declared → the settings that declare it: of lldscope's trainer, of TRL's GRPOConfig, and
# of verl, whose names have dots.
SETTINGS: dict[str, tuple[str, ...]] = {
    name: (name, *(trainers.SETTINGS[name][other] for other in ("trl", "verl")))
    for name in ("advantage_std", "group_size", "top_p")
} | {
    "estimator": ("algorithm.adv_estimator", "multi_objective_aggregation"),
    "temperature": ("temperature", "actor_rollout_ref.rollout.temperature"),
    "top_k": ("top_k", "actor_rollout_ref.rollout.top_k"),
}
GROUP_RELATIVE = (
    "grpo", "grpo_vectorized", "grpo_passk", "rloo", "gspo", "dr_grpo", "sum_then_normalize",
)


@dataclass(frozen=True)
class Setting:
    """A declared value, and its name in the trainer's own configuration."""

    name: str
    value: Any


def declared(config: Any) -> dict[str, Setting]:
    """The `SETTINGS` that a configuration declares; nested names have dots."""
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
    """A declared number; None if it is missing or not a number."""
    setting = settings.get(fact)
    try:
        value = float(setting.value) if setting is not None else math.nan
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def group_relative(settings: Mapping[str, Setting]) -> bool:
    """False if the declared advantage estimator does not compare the rollouts of a group."""
    setting = settings.get("estimator")
    return setting is None or str(setting.value).lower() in GROUP_RELATIVE
