"""The guard: what training does by itself when an alarm fires. Off unless configured.

It decides; the train loop acts, and records every action as an event. An alarm counts once per
episode, so one that latches does not trigger again and again, nor after a resume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ACTIONS = ("rollback", "llds", "save", "stop")
"""In the order in which they are taken."""


class Guard:
    """Alarms -> actions. `actions` and `rules` are comma-separated, as in the configuration;
    `answered` names the alarms that were acted on before and may still fire."""

    def __init__(self, actions: str, rules: str, answered: Sequence[str] = ()) -> None:
        wanted = set() if actions == "off" else set(actions.split(","))
        self.actions = tuple(a for a in ACTIONS if a in wanted)
        self._rules = {rule.strip() for rule in rules.split(",")}
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

    def decide(self, changes: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], str | None]:
        """(actions, the rule they answer) for the alarms whose state has changed; ((), None)
        where nothing is to be done."""
        cause = None
        for alert in changes:
            rule, episodes = alert["rule"], len(alert["episodes"])
            if alert["state"] != "firing":
                self._firing.discard(rule)
                self._answered.pop(rule, None)
                continue
            if alert["severity"] != "info":
                self._firing.add(rule)
            if rule in self._rules and self.actions:
                before = self._answered.get(rule)
                if before is None or 0 < before < episodes:
                    cause = cause or rule
                self._answered[rule] = episodes
        return (self.actions, cause) if cause else ((), None)
