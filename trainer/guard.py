"""The guard: what training does by itself when an alarm fires. Off unless configured.

It decides; the train loop acts, and records every action as an event. An alarm counts once per
episode, so one that latches does not trigger again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ACTIONS = ("save", "rollback", "llds", "stop")
"""In the order in which they are taken."""


class Guard:
    """Alarms -> actions. `actions` and `rules` are comma-separated, as in the configuration."""

    def __init__(self, actions: str, rules: str) -> None:
        wanted = set() if actions == "off" else set(actions.split(","))
        self.actions = tuple(a for a in ACTIONS if a in wanted)
        self._rules = {rule.strip() for rule in rules.split(",")}
        self._firing: set[str] = set()

    @property
    def firing(self) -> tuple[str, ...]:
        """The warnings and critical alarms firing at the last look, any rule, sorted."""
        return tuple(sorted(self._firing))

    def decide(self, news: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], str | None]:
        """(actions, the rule they answer) for the alarms whose state has changed; ((), None)
        where nothing is to be done."""
        cause = None
        for alert in news:
            if alert["state"] == "firing":
                if alert["severity"] != "info":
                    self._firing.add(alert["rule"])
                if alert["rule"] in self._rules:
                    cause = cause or alert["rule"]
            else:
                self._firing.discard(alert["rule"])
        return (self.actions, cause) if cause and self.actions else ((), None)
