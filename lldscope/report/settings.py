"""What the runs of two arms were set to, and where that differs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

LONGEST = 80  # characters of a value that are shown
BEFORE = 20  # of them that stand before a difference
NOT_SET = "not recorded"

Told = Sequence[Mapping[str, Any]]  # of each run: name, trainer, correct_rule, config


def differences(arms: Sequence[Told]) -> list[dict[str, Any]]:
    """Settings whose values are not the same in all arms: `setting` and `values`, a list per arm.

    Inner settings are named with dots. A setting that says nothing but the run's own name is none,
    nor is one that takes the same values in every arm, such as seeds.
    """
    flat = [[dict(_settings(run)) for run in runs] for runs in arms]
    names = dict.fromkeys(name for runs in flat for run in runs for name in run)
    found = []
    for name in names:
        values = [sorted({run.get(name, NOT_SET) for run in runs}) for runs in flat]
        if any(of != values[0] for of in values):
            found.append({"setting": name, "values": values})
    return found


def varying(arms: Sequence[Told]) -> list[str]:
    """Settings that differ within an arm, but take the same values in every arm."""
    other = {row["setting"] for row in differences(arms)}
    flat = [[dict(_settings(run)) for run in runs] for runs in arms]
    names = dict.fromkeys(name for runs in flat for run in runs for name in run)
    return [
        name for name in names
        if name not in other and len({run.get(name, NOT_SET) for run in flat[0]}) > 1
    ]  # fmt: skip


def _settings(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, name in (("trainer", "recorded by"), ("correct_rule", "counts as correct")):
        if run[key]:
            yield name, _said(run[key])
    for name, value in _flat(run["config"]):
        if not (name.endswith("name") and value == run["name"]):
            yield name, _said(value)


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def shown(row: Mapping[str, Any]) -> list[list[str]]:
    """The values of one of `differences` as pages show them, a list per arm: long ones from their
    beginning, or, where that is the same of several, from where these begin to differ."""
    alike: dict[str, set[str]] = {}
    for value in (v for of in row["values"] for v in of):
        alike.setdefault(value[:LONGEST], set()).add(value)
    return [[_cut(value, alike[value[:LONGEST]]) for value in of] for of in row["values"]]


def _cut(value: str, alike: Collection[str]) -> str:
    """LONGEST characters of a value, among them where it differs from those that begin like it."""
    least, most = min(alike), max(alike)  # what these begin with, all between them do
    pairs = enumerate(zip(least, most, strict=False))
    differs = next((i for i, (a, b) in pairs if a != b), len(least))
    start = max(0, differs - BEFORE) if least != most else 0
    end = start + LONGEST
    return f"{'… ' if start else ''}{value[start:end]}{' …' if len(value) > end else ''}"
