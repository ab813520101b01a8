"""The doctor's look at manifests and parts: what is damaged, unlisted or left over."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator

from . import files, parts, store
from .damage import damage
from .doctor_files import lost_rows, name_of, quarantine, readable, set_aside, wrong_content
from .doctor_findings import WHY, Examination, Finding, Place, manifest_name
from .manifest import Part, manifest_path, quarantined


def look_at_manifests(at: Place) -> Iterator[Finding]:
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
    for path in sorted((at.run / store.MANIFEST_DIR).glob("*")):
        if not store.is_small_file(f"{store.MANIFEST_DIR}/{path.name}"):
            yield Finding("note", "foreign", name_of(at.run, path), "no file of lldscope.")


def _known(at: Place) -> set[tuple[int, int]]:
    """Every (attempt, rank) of which there is a trace."""
    strays = parts.stray_files(at.run, at.manifest)
    return {*at.names, *(s.name.owner for s in strays if s.name is not None)}


def _mend(at: Place, attempt: int, rank: int) -> None:
    """Put an empty line in the place of each that cannot be read, so that none is missing."""
    path = manifest_path(at.run, attempt, rank)
    told = store.counted_lines(at.run).get(path.name, 0)
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    empty = files.with_checksum(store.to_json({"parts": {}})).rstrip()
    bad = {
        w.rpartition(" ")[2]
        for w in at.manifest.damaged
        if w.startswith(manifest_name(attempt, rank))
    }
    kept = [empty if str(number) in bad else line for number, line in enumerate(lines, 1)]
    kept += [empty] * (told - len(kept))
    if path.exists():
        name = f"{store.MANIFEST_DIR}-{path.name}"
        shutil.copyfile(path, path.with_name(path.name + store.IN_PROGRESS))
        set_aside(at.run, path.with_name(path.name + store.IN_PROGRESS), name, "bad lines")
    store.replace_file(path, b"".join(line + b"\n" for line in kept).decode())


def look_at_parts(at: Place, result: Examination) -> Iterator[Finding]:
    """Every part that counts, read whole: size, checksum, footer, rows, steps, columns."""
    rows: Counter[str] = Counter()
    steps: Counter[tuple[int, int, int]] = Counter()
    for part in at.manifest.parts:
        where = f"{part.table}/{part.file}"
        wrong = damage(at.run, part) or wrong_content(at.run, part, steps)
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


def _merged_away(at: Place, part: Part) -> bool:
    """Whether a living recorder has let go of a part since the manifest was read."""
    return part not in store.read_manifest(at.run).parts


def look_at_strays(at: Place) -> Iterator[Finding]:
    """Files that do not count: leftovers of a kill, and rows that can be listed again."""
    lost = {path.split(" ")[0] for path in at.manifest.damaged}
    whole: dict[tuple[int, int, int, int], list[tuple[parts.StrayFile, Part]]] = {}
    for stray in parts.stray_files(at.run, at.manifest):
        where = name_of(at.run, stray.path)
        if stray.name is None:
            yield Finding("note", "foreign", where, "no file of lldscope.")
        elif stray.name.owner in at.living:
            continue  # its writer is about to list or to remove it
        elif stray.kind == "unsealed" and (part := readable(at.run, stray)):
            seal = (*stray.name.owner, stray.name.first, stray.name.last)
            whole.setdefault(seal, []).append((stray, part))
        elif stray.kind == "unsealed":
            why = "it was never listed, and cannot be read"
            yield Finding(
                "warning", "leftover", where, f"{why}.", "move it into quarantine/",
                action=lambda s=stray, w=why: set_aside(  # type: ignore[misc]
                    at.run, s.path, f"{s.table}-{s.path.name}", w
                ),
            )  # fmt: skip
        else:
            yield Finding(
                "note", "leftover", where, f"{WHY[stray.kind]}.", "remove it",
                action=lambda s=stray: s.path.unlink(missing_ok=True),  # type: ignore[misc]
            )  # fmt: skip
    for (attempt, rank, first, last), found in sorted(whole.items()):
        yield _unlisted(at, attempt, rank, found, first < last, lost)


def _unlisted(
    at: Place,
    attempt: int,
    rank: int,
    found: list[tuple[parts.StrayFile, Part]],
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
            action=lambda: parts.seal(at.run, attempt, rank, [part for _, part in found]),
        )  # fmt: skip

    def aside() -> None:
        for stray, part in found:
            name = f"{part.table}-{part.file}"
            set_aside(at.run, stray.path, name, "part of a seal that was not completed")

    return Finding(
        "warning", "leftover", where,
        f"{rows} rows of a seal that was not completed; the process ended in it.",
        "move them into quarantine/", action=aside,
    )  # fmt: skip
