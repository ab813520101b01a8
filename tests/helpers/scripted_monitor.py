"""A monitor for trainings that are to be stopped."""

from __future__ import annotations


class Script:
    """A monitor that says at its second look that a rule fires."""


    def __init__(self, path, every):
        self.looks = 0

    def poll(self):
        self.looks += 1
        news = [{"rule": "lld-decay", "state": "firing", "severity": "critical"}]
        return "decay", news if self.looks == 2 else []

    def close(self): ...
