"""Which format each path has: detected from its content, or forced."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import LldscopeError, UsageError
from .reading import first_object, head, natural_key
from .source import HEAD_BYTES, Findings, Source, sources

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Group:
    """The paths of one format, which are read together."""

    source: Source
    paths: list[Path]

    @property
    def size(self) -> int:
        return sum(p.stat().st_size for path in self.paths for p in files_of(path))


def groups(paths: Sequence[Path], wanted: str | None, findings: Findings) -> list[Group]:
    """The paths by format, in the order of `sources`. A folder that no format claims as a whole is
    searched; files that no format claims are counted.

    Raises UsageError for a format that is not there, LldscopeError for a path that is not.
    """
    known = sources()
    if wanted is not None:
        known = [s for s in known if s.name == wanted]
        if not known:
            names = ", ".join(s.name for s in sources())
            raise UsageError(f"There is no format {wanted}. There are: {names}.")
    claimed: dict[str, list[Path]] = {}
    for path in paths:
        if not path.exists():
            raise LldscopeError(f"{path} does not exist.")
        for source, one in _claims(path, known, forced=wanted is not None, findings=findings):
            mine = claimed.setdefault(source.name, [])
            if one not in mine:
                mine.append(one)
    return [Group(s, claimed[s.name]) for s in known if s.name in claimed]


def _claims(
    path: Path, known: list[Source], forced: bool, findings: Findings
) -> list[tuple[Source, Path]]:
    if forced and path.is_file():
        return [(known[0], path)]
    start = head(path, HEAD_BYTES)
    for source in known:
        if source.looks_like(path, start):
            return [(source, path)]
    if not path.is_dir():
        named = _with_step(start, findings.request.columns.get("step"))
        if mine := [source for source in known if source.name == named]:
            return [(mine[0], path)]
        findings.skip("files of no known format")
        return []
    if forced:
        return [(known[0], path)]
    inside = sorted((p for p in path.iterdir() if not p.is_symlink()), key=natural_key)
    return [claim for p in inside for claim in _claims(p, known, forced, findings)]


def _with_step(start: bytes, step: str | None) -> str | None:
    """The format of a file whose steps have the name that was asked for; None if it has none."""
    if step is None:
        return None
    if step in (first_object(start) or {}):
        return "metric-lines"
    header = start.partition(b"\n")[0].decode("utf-8", "replace")
    return "csv" if step in (name.strip() for name in re.split("[,;\t]", header)) else None


def files_of(path: Path) -> list[Path]:
    """The regular files behind a path; what was last written to a database is in its WAL."""
    if path.is_dir():
        return sorted(p for p in path.rglob("*") if p.is_file())
    wal = path.with_name(path.name + "-wal")
    return [path, wal] if wal.is_file() else [path]


def fingerprint(path: Path) -> str:
    """Hash of the content of a path, names inside a folder included."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files_of(path):
        if path.is_dir():
            digest.update(str(file.relative_to(path)).encode("utf-8", "replace") + b"\0")
        with open(file, "rb") as content:
            while block := content.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()
