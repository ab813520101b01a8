"""The doctor's data: the examined run and the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..storage.manifest import Manifest
from ..storage.part import Owner

Severity = Literal["damage", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("damage", "warning", "note")  # worst first


@dataclass
class Finding:
    """One finding: its kind, its place, and its repair."""

    severity: Severity
    what: str
    where: str
    message: str
    repair: str | None = None  # what `repair` does; None: nothing
    action: Callable[[], object] | None = field(default=None, repr=False, compare=False)
    repaired: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "action"}


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The highest severity among the findings that are not repaired."""
    present = {f.severity for f in findings if not f.repaired}
    return next((s for s in SEVERITIES if s in present), None)


@dataclass
class Examination:
    """A run directory at the beginning of the examination, and the findings. `rows` counts the rows
    of intact parts by table."""

    run: Path
    manifest: Manifest
    recording: dict[Owner, str]  # recorder that may still be alive → why
    heartbeats: dict[int, dict[str, Any]]
    findings: list[Finding]
    rows: Counter[str] = field(default_factory=Counter)
