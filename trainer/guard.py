"""The guard: actions of the training itself when an alarm fires. Off unless configured.

It decides; the train loop acts, and records every action as an event. An alarm counts once per
episode, so a latched alarm does not trigger again, nor after a resume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ACTIONS = ("rollback", "llds", "cure", "save", "stop")
"""The actions, in order."""

CURES = {
    "lld-decay": "llds",
    "lld-collapse": "llds",
    "retention-loss": "lr",
    "step-size": "lr",
    "lr-jump": "lr",
    "engine-mismatch": "importance_sampling",
}
"""Alarm → the changes of `cure`. An alarm that another cause explains does not fire, so the alarm
that fires names the cause."""


@dataclass(frozen=True)
class Cures:
    """What a guard may change between two steps, on all ranks alike: settings of these names, and a
    factor on the learning rate."""

    llds: str
    llds_coefficient: float
    importance_sampling: str
    lr_share: float = 1.0

    @classmethod
    def of(cls, config: Any) -> Cures:
        """The configured settings."""
        return cls(config.llds, config.llds_coefficient, config.importance_sampling)

    def with_llds(self, least: float) -> Cures:
        """LLDS with its current gate or else the action gate, and at least this coefficient."""
        if self.llds == "off":
            return replace(self, llds="action", llds_coefficient=least)
        return replace(self, llds_coefficient=max(self.llds_coefficient, least))

    def against(self, rule: str, coefficient: float) -> Cures:
        """The remedy for the alarm: LLDS, half the learning rate, or truncated weights."""
        if CURES[rule] == "llds":
            return self.with_llds(coefficient)
        if CURES[rule] == "lr":
            return replace(self, lr_share=self.lr_share / 2)
        if self.importance_sampling == "off":
            return replace(self, importance_sampling="token_truncate")
        return self


def watched(rules: str) -> tuple[str, ...]:
    """The alarms listed in `guard_on`."""
    return tuple(rule.strip() for rule in rules.split(","))


class Guard:
    """Maps alarms to actions. `actions` and `rules` are comma-separated, as in the configuration;
    `answered` are alarms that were acted on before and may still fire."""

    def __init__(self, actions: str, rules: str, answered: Sequence[str] = ()) -> None:
        names = set() if actions == "off" else set(actions.split(","))
        self.actions = tuple(a for a in ACTIONS if a in names)
        self.rules = watched(rules)
        self._firing: set[str] = set()
        self._answered = dict.fromkeys(answered, 0)  # rule -> its episodes then, 0: not known

    @property
    def firing(self) -> tuple[str, ...]:
        """The warnings and critical alarms firing at the last check, any rule, sorted."""
        return tuple(sorted(self._firing))

    @property
    def answered(self) -> tuple[str, ...]:
        """The alarms acted on that have not been resolved since, sorted."""
        return tuple(sorted(self._answered))

    def decide(self, changes: Sequence[Mapping[str, Any]]) -> str | None:
        """The alarm to act on, among those whose state has changed; None if there is none."""
        cause = None
        for alert in changes:
            rule, episodes = alert["rule"], len(alert["episodes"])
            if alert["state"] != "firing":
                self._firing.discard(rule)
                self._answered.pop(rule, None)
                continue
            if alert["severity"] != "info":
                self._firing.add(rule)
            if rule in self.rules and self.actions:
                before = self._answered.get(rule)
                if before is None or 0 < before < episodes:
                    cause = cause or rule
                self._answered[rule] = episodes
        return cause
