"""The setting to change, by the name that the run's trainer has for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core.trainers import OTHER, SETTINGS, TRAINERS, Trainer, trainer_called
from ..explore.settings import flat

# Rule → the setting, as ours is called, that is the first to change, and how.
_FIRST = {
    **dict.fromkeys(
        ("lld-decay", "lld-collapse", "grad-explosion", "entropy-surge", "clip-share", "lr-jump"),
        ("lr", "halve it"),
    ),
    "entropy-floor": ("clip_high", "raise it"),
    "kl-explosion": ("kl_coefficient", "raise it"),
    "truncation": ("sequence_tokens", "raise it, if responses are right when they are longer"),
    "step-size": ("updates", "make fewer per batch"),
}


@dataclass(frozen=True)
class SettingChange:
    """A setting by the trainer's own name, its value in this run (None: not recorded), and how to
    change it."""

    setting: str
    value: str | None
    change: str

    def __str__(self) -> str:
        here = "" if self.value is None else f", {self.value} in this run"
        return f"{self.setting}{here}: {self.change}"


def trainer_of(info: Mapping[str, Any]) -> Trainer:
    """The trainer that made a run, or wrote the log it was imported from, by its run.json. Without
    `record` where it recorded the run itself: it has what its trainer can record."""
    imported = info.get("imported")
    if not imported:
        return replace(trainer_called(info.get("trainer")), record=())
    return next((t for t in TRAINERS if t.id == imported.get("trainer")), OTHER)


def first_change(
    trainer: Trainer, config: Mapping[str, Any] | None, rule: str | None
) -> SettingChange | None:
    """The one setting to change, if the cause is one that a setting cures. `rule` is that of the
    headline's action."""
    if rule not in _FIRST:
        return None
    ours, change = _FIRST[rule]
    name, value = find_setting(config, ours)
    name = name or trainer.setting(ours)
    return SettingChange(name, value, change) if name else None


def find_setting(
    config: Mapping[str, Any] | None, ours: str
) -> tuple[str | None, str | None]:
    """A setting of ours that a configuration holds, under the name of any known trainer, and its
    value; None and None without."""
    theirs = SETTINGS.get(ours, {})
    tails = {ours, *(theirs[t].rpartition(".")[2] for t in ("trl", "verl") if t in theirs)}
    pairs = flat(config).items()
    return next(((n, v) for n, v in pairs if n.rpartition(".")[2] in tails), (None, None))
