"""The setting to change, by the name that the run's trainer has for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core.trainers import OTHER, SETTINGS, TRAINERS, Trainer, trainer_called
from ..explore.settings import flat

# Rule → our name of the setting to change first, and how to change it.
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
    """The trainer of a run, or of the log from which it was imported, by its run.json. A recorded
    run has all that its trainer can record, so `record` is empty then."""
    imported = info.get("imported")
    if not imported:
        return replace(trainer_called(info.get("trainer")), record=())
    return next((t for t in TRAINERS if t.id == imported.get("trainer")), OTHER)


def first_change(
    trainer: Trainer, config: Mapping[str, Any] | None, rule: str | None
) -> SettingChange | None:
    """The setting to change first, if a setting cures the cause. `rule` is that of the headline's
    action."""
    if rule not in _FIRST:
        return None
    ours, change = _FIRST[rule]
    name, value = find_setting(config, ours)
    name = name or trainer.setting(ours)
    return SettingChange(name, value, change) if name else None


def find_setting(
    config: Mapping[str, Any] | None, ours: str
) -> tuple[str | None, str | None]:
    """Name and value in a configuration of one of our settings, whatever a known trainer calls it;
    None and None if it is not there."""
    theirs = SETTINGS.get(ours, {})
    tails = {ours, *(theirs[t].rpartition(".")[2] for t in ("trl", "verl") if t in theirs)}
    pairs = flat(config).items()
    return next(((n, v) for n, v in pairs if n.rpartition(".")[2] in tails), (None, None))
