"""What the doctor says of a run: findings, and what they are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..storage.manifest import MANIFEST_DIR, Manifest

Severity = Literal["damage", "warning", "note"]


@dataclass
class Finding:
    """One thing about a run: what, where, and what `--repair` does about it (None: nothing)."""

    severity: Severity
    what: str
    where: str
    message: str
    repair: str | None = None
    repaired: bool = False
    action: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def plain(self) -> dict[str, Any]:
        names = ("severity", "what", "where", "message", "repair", "repaired")
        return {name: getattr(self, name) for name in names}


@dataclass
class Examination:
    """What is in a run directory, and everything there is to say about it."""

    run: Path
    parts: int = 0
    rows: dict[str, int] = field(default_factory=dict)  # of the sound parts, by table
    findings: list[Finding] = field(default_factory=list)

    def worst(self) -> Severity | None:
        """The most severe of what is not repaired."""
        left = {f.severity for f in self.findings if not f.repaired}
        order: tuple[Severity, ...] = ("damage", "warning", "note")
        return next((s for s in order if s in left), None)


@dataclass(frozen=True)
class Location:
    """A run that is looked at: its manifests, and who may still be writing, with the reason."""

    run: Path
    info: dict[str, Any]
    manifest: Manifest
    names: list[tuple[int, int]]
    living: dict[tuple[int, int], str]


WHY = {
    "unfinished": "a file that was never finished; its writer ended in the middle of it",
    "merged away": "its rows are in a merged part",
    "unpublished": "a merged part that was never listed; what it was made of still counts",
}


def manifest_name(attempt: int, rank: int) -> str:
    return f"{MANIFEST_DIR}/a{attempt}-r{rank}.jsonl"
