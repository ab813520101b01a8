"""The doctor's look at manifests and parts: what is damaged, unlisted or left over."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..storage import files, json_files, layout, part_file
from ..storage.integrity import find_damage
from ..storage.manifest import (
    MANIFEST_DIR,
    QUARANTINE_DIR,
    ManifestFile,
    ManifestReader,
    Part,
    manifest_path,
    quarantined,
)
from .files import lost_rows, name_of, quarantine, readable, set_aside, wrong_content
from .findings import WHY, Examination, Finding, Location, manifest_name


def check_manifests(at: Location) -> Iterator[Finding]:
    for where, why in at.manifest.damaged.items():
        name = next((n for n in _known(at) if where.startswith(manifest_name(*n))), None)
        if name is None or name in at.living:
            yield Finding("damage", "manifest", where, f"{why}.")
        else:
            yield Finding(
                "damage", "manifest", where, f"{why}.",
                "keep the sound lines, and list sound parts that are listed no more",
                action=lambda n=name: _mend(at, *n),  # type: ignore[misc]
            )  # fmt: skip
    for path in sorted((at.run / MANIFEST_DIR).glob("*")):
        if not layout.is_small_file(f"{MANIFEST_DIR}/{path.name}"):
            yield Finding("note", "foreign", name_of(at.run, path), "no file of lldscope.")


def _known(at: Location) -> set[tuple[int, int]]:
    """Every (attempt, rank) of which there is a trace."""
    strays = part_file.unlisted_files(at.run, at.manifest)
    return {*at.names, *(s.name.owner for s in strays if s.name is not None)}


def _mend(at: Location, attempt: int, rank: int) -> None:
    """Put an empty line in the place of each that cannot be read, so that none is missing."""
    path = manifest_path(at.run, attempt, rank)
    told = layout.counted_lines(at.run).get(path.name, 0)
    found = path.read_bytes() if path.is_file() else b""
    lines = found.split(b"\n")[:-1]
    empty = files.with_checksum(json_files.to_json({"parts": {}})).rstrip()
    replay = ManifestFile(at.run, attempt, rank)
    kept = [line if replay.take(line) is None else empty for line in lines]
    kept += [empty] * (told - len(kept))
    mended = b"".join(line + b"\n" for line in kept)
    if path.is_file() and mended == found:
        return  # the finding of another line has brought this about
    if path.exists():
        name = unused(at.run, f"{MANIFEST_DIR}-{path.name}")
        shutil.copyfile(path, path.with_name(path.name + json_files.IN_PROGRESS))
        set_aside(at.run, path.with_name(path.name + json_files.IN_PROGRESS), name, "bad lines")
    json_files.replace_file(path, mended.decode())


def unused(run: Path, name: str) -> str:
    """A name in quarantine/ under which nothing lies yet: what was moved there first stays."""
    stem, dot, kind = name.rpartition(".")
    names = (name, *(f"{stem}.{n}{dot}{kind}" for n in range(2, 10_000)))
    return next(n for n in names if not (run / QUARANTINE_DIR / n).exists())


def check_parts(at: Location, result: Examination) -> Iterator[Finding]:
    """Every part that counts, read whole: size, checksum, footer, rows, steps, columns."""
    rows: Counter[str] = Counter()
    steps: Counter[tuple[int, int, int]] = Counter()
    for part in at.manifest.parts:
        where = f"{part.table}/{part.file}"
        wrong = find_damage(at.run, part) or wrong_content(at.run, part, steps)
        if wrong and (part.attempt, part.rank) in at.living and _merged_away(at, part):
            continue
        if wrong is None:
            rows[part.table] += part.rows
        elif quarantined(at.run, part):
            yield Finding("warning", "quarantine", where, f"{lost_rows(part)}: {wrong}.")
        elif part.path(at.run).exists() and (part.attempt, part.rank) not in at.living:
            yield Finding(
                "damage",
                "part",
                where,
                f"{lost_rows(part)}: {wrong}.",
                "move it into quarantine/",
                action=lambda p=part, w=wrong: quarantine(at.run, p, w),  # type: ignore[misc]
            )
        else:
            yield Finding("damage", "part", where, f"{lost_rows(part)}: {wrong}.")
    result.parts, result.rows = len(at.manifest.parts), dict(rows)
    for (attempt, rank, step), times in sorted(steps.items()):
        if times > 1:
            yield Finding(
                "warning",
                "repeated-step",
                f"attempt {attempt}, rank {rank}",
                f"step {step} was recorded {times} times: its sums count {times} times. Call "
                "`step()` once per step.",
            )


def _merged_away(at: Location, part: Part) -> bool:
    """Whether a living recorder has let go of a part since the manifest was read."""
    return part not in layout.read_manifest(at.run).parts


SPANNED = "a merged part spans its seal, and no manifest says that it holds its rows"


def check_unlisted_files(at: Location) -> Iterator[Finding]:
    """Files that do not count: leftovers of a kill, and rows that can be listed again."""
    # The parts have been read since the manifests were, which takes minutes on a long run.
    reader = ManifestReader(at.run)
    manifest = layout.read_manifest(at.run, reader)
    lost = {path.split(" ")[0] for path in (*at.manifest.damaged, *manifest.damaged)}
    whole: dict[tuple[int, int, int, int], list[tuple[part_file.UnlistedFile, Part]]] = {}
    for stray in part_file.unlisted_files(at.run, manifest):
        where = name_of(at.run, stray.path)
        if stray.name is None:
            yield Finding("note", "foreign", where, "no file of lldscope.")
        elif stray.name.owner in at.living:
            continue  # its writer is about to list or to remove it
        elif stray.kind == "unsealed" and (part := readable(at.run, stray)):
            seal = (*stray.name.owner, stray.name.first, stray.name.last)
            whole.setdefault(seal, []).append((stray, part))
        elif stray.kind in ("unsealed", "passed over"):
            unread = "it was never listed, and cannot be read"
            yield _aside(at, stray, SPANNED if stray.kind == "passed over" else unread, reader)
        else:
            yield Finding(
                "note", "leftover", where, f"{WHY[stray.kind]}.", "remove it",
                action=lambda s=stray: _remove(at, s, reader),  # type: ignore[misc]
            )  # fmt: skip
    every = [part for found in whole.values() for _, part in found]
    for (attempt, rank, first, last), found in sorted(whole.items()):
        spanned = [
            s for s, p in found if any(o.name.covers(p.name) for o in every if o.table == p.table)
        ]
        for stray in spanned:
            yield _aside(at, stray, SPANNED, reader)
        if rest := [pair for pair in found if pair[0] not in spanned]:
            yield _unlisted(at, attempt, rank, rest, first < last, lost)


def _aside(
    at: Location, stray: part_file.UnlistedFile, why: str, reader: ManifestReader
) -> Finding:
    return Finding(
        "warning", "leftover", name_of(at.run, stray.path), f"{why}.", "move it into quarantine/",
        action=lambda: _put_aside(at, stray, why, reader),
    )  # fmt: skip


def _remove(at: Location, stray: part_file.UnlistedFile, reader: ManifestReader) -> None:
    """Remove a file, unless it has come to count since it was looked at."""
    if part_file.may_go(at.run, stray, layout.read_manifest(at.run, reader)):
        stray.path.unlink(missing_ok=True)


def _put_aside(
    at: Location, stray: part_file.UnlistedFile, why: str, reader: ManifestReader
) -> None:
    """Move a file into quarantine, unless it has come to count since it was looked at."""
    listed = layout.read_manifest(at.run, reader).parts
    counts = any((p.table, p.file) == (stray.table, stray.path.name) for p in listed)
    if stray.path.exists() and not counts:
        name = unused(at.run, f"{stray.table}-{stray.path.name}")
        set_aside(at.run, stray.path, name, why)


def _unlisted(
    at: Location,
    attempt: int,
    rank: int,
    found: list[tuple[part_file.UnlistedFile, Part]],
    merged: bool,
    lost: set[str],
) -> Finding:
    """Sound parts of one seal that no manifest line lists.

    The part of `steps` is written last: with it the seal is whole. Without it only a manifest
    that has lost lines can be the reason to list the others.
    """
    manifest = manifest_name(attempt, rank)
    rows = sum(part.rows for _, part in found)
    where = ", ".join(name_of(at.run, stray.path) for stray, _ in found)
    if manifest in lost or merged or any(part.table == "steps" for _, part in found):
        return Finding(
            "damage" if manifest in lost else "warning", "unlisted", where,
            f"{rows} rows that are whole and that no manifest lists.", "list them",
            action=lambda: part_file.seal(at.run, attempt, rank, [part for _, part in found]),
        )  # fmt: skip

    def aside() -> None:
        for stray, part in found:
            name = unused(at.run, f"{part.table}-{part.file}")
            set_aside(at.run, stray.path, name, "part of a seal that was not completed")

    return Finding(
        "warning", "leftover", where,
        f"{rows} rows of a seal that was not completed; the process ended in it.",
        "move them into quarantine/", action=aside,
    )  # fmt: skip
