"""Settings of the runs of two arms: which differ between them, and which vary within."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..examples import shared_prefix
from ..facts import RunFacts

LONGEST = 80  # characters of a value that are shown
BEFORE = 20  # of them that are in front of a difference
NOT_SET = "not recorded"

Arms = Sequence[Sequence[RunFacts]]


@dataclass(frozen=True)
class Setting:
    """A setting, named with dots where it is nested, and its values as text: a list per arm."""

    setting: str
    values: list[list[str]]

    @property
    def one_sided(self) -> bool:
        """Whether an arm did not record it."""
        return [NOT_SET] in self.values

    def shown(self) -> list[str]:
        """The values of each arm, shortened: long ones from their beginning, or, where several
        begin alike, from where these begin to differ."""
        alike: dict[str, set[str]] = {}
        for value in (v for of in self.values for v in of):
            alike.setdefault(value[:LONGEST], set()).add(value)
        return [", ".join(_cut(v, alike[v[:LONGEST]]) for v in of) for of in self.values]


def differences(arms: Arms) -> list[Setting]:
    """Settings whose values are not the same in all arms.

    Left out are those that only repeat the name of the run, and those that take the same values in
    every arm, such as seeds.
    """
    return [s for s in _settings(arms) if any(of != s.values[0] for of in s.values)]


def varying(arms: Arms) -> list[str]:
    """Settings that differ within an arm, but take the same values in every arm."""
    return [
        s.setting for s in _settings(arms)
        if len(s.values[0]) > 1 and all(of == s.values[0] for of in s.values)
    ]  # fmt: skip


def _settings(arms: Arms) -> list[Setting]:
    flat = [[dict(_of_run(run)) for run in runs] for runs in arms]
    names = dict.fromkeys(name for runs in flat for run in runs for name in run)
    return [
        Setting(name, [sorted({run.get(name, NOT_SET) for run in runs}) for runs in flat])
        for name in names
    ]


def _of_run(run: RunFacts) -> Iterator[tuple[str, str]]:
    for value, name in ((run.trainer, "recorded by"), (run.correct_rule, "counts as correct")):
        if value:
            yield name, value
    for name, setting in _flat(run.config):
        if not (name.endswith("name") and setting == run.name):
            yield name, _text(setting)


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _cut(value: str, alike: Collection[str]) -> str:
    """LONGEST characters of a value, among them where it differs from those that begin like it."""
    least, most = min(alike), max(alike)  # all between them share the prefix of these two
    start = max(0, shared_prefix(least, most) - BEFORE) if least != most else 0
    end = start + LONGEST
    return f"{'… ' if start else ''}{value[start:end]}{' …' if len(value) > end else ''}"
