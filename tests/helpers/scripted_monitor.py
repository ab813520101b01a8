"""Monitors that say what a test wants said."""

from __future__ import annotations


def alarm(rule: str = "lld-decay", state: str = "firing", step: int = 2) -> dict:
    return {
        "rule": rule, "severity": "warning", "state": state, "step": step, "message": "Δ fell",
        "episodes": [[step, None]],
    }


class Script:
    """A monitor that says, at its n-th look, what the test wants said."""

    def __init__(self, **news: list[dict]) -> None:
        self.news = {int(k.removeprefix("look")): v for k, v in news.items()}
        self.looks, self.is_closed = 0, False

    def poll(self):
        self.looks += 1
        return "decay", self.news.get(self.looks, [])

    def close(self) -> None:
        self.is_closed = True


def critical_at_the_second_look(path, every) -> Script:
    return Script(look2=[alarm() | {"severity": "critical"}])
