"""The repairs of `lldscope doctor --repair`, one function per finding.

Files are moved into `quarantine/` rather than deleted, unless another part holds their rows. A file
that a manifest lists since the examination is left alone.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from ..storage import json_files, layout
from ..storage.heartbeats import read_heartbeats
from ..storage.integrity import UnlistedFile, is_removable
from ..storage.manifest import (
    MANIFEST_DIR,
    ManifestFile,
    line_number,
    manifest_names,
    manifest_path,
)
from ..storage.part import QUARANTINE_DIR, Owner, Part


def quarantine(run: Path, path: Path, name: str, why: str) -> None:
    """Move a file into quarantine/ under an unused name, with the reason beside it as text."""
    stem, dot, suffix = name.rpartition(".")
    names = (name, *(f"{stem}.{n}{dot}{suffix}" for n in range(2, 10_000)))
    folder = run / QUARANTINE_DIR
    folder.mkdir(exist_ok=True)
    target = next(folder / n for n in names if not (folder / n).exists())
    target.with_suffix(".txt").write_text(f"{why}\n", encoding="utf-8")
    os.replace(path, target)


def quarantine_part(run: Path, part: Part, why: str) -> None:
    quarantine(run, part.path(run), f"{part.table}-{part.file}", why)


def quarantine_unlisted(run: Path, file: UnlistedFile, why: str) -> None:
    counts = any(part.path(run) == file.path for part in layout.read_manifest(run).parts)
    if file.path.exists() and not counts:
        quarantine(run, file.path, f"{file.table}-{file.path.name}", why)


def remove_unlisted(run: Path, file: UnlistedFile) -> None:
    if is_removable(run, file, layout.read_manifest(run)):
        file.path.unlink(missing_ok=True)


def rewrite_manifest(run: Path, owner: Owner) -> None:
    """Keep the readable commits and number them anew; empty commits replace the others."""
    path = manifest_path(run, *owner)
    reported = layout.reported_lines(read_heartbeats(run)).get(owner, 0)
    old = path.read_bytes() if path.is_file() else b""
    manifest = ManifestFile(run, *owner)
    lines = [line for line in old.split(b"\n")[:-1] if manifest.replay(line) is None]
    commits = [json_files.parse_line(line)[0] for line in lines]
    n_lines = max([reported, len(lines), *map(line_number, lines)])
    commits += [{"parts": {}}] * (n_lines - len(lines))
    new = b"".join(
        json_files.with_checksum(json_files.to_json(commit | {"n": number}))
        for number, commit in enumerate(commits, 1)
    )
    if path.exists():
        copy = path.with_name(path.name + json_files.IN_PROGRESS)
        shutil.copyfile(path, copy)
        quarantine(run, copy, f"{MANIFEST_DIR}-{path.name}", "bad lines")
    json_files.replace_file(path, new.decode())


def rebuild_run_file(run: Path) -> None:
    """Write a new run.json from the manifests; the old file goes into quarantine."""
    path, owners = run / layout.RUN_FILE, manifest_names(run)
    if path.exists():
        quarantine(run, path, layout.RUN_FILE, "it could not be read")
    now = time.time()
    starts: dict[int, float] = {}
    for owner in owners:
        modified = manifest_path(run, *owner).stat().st_mtime
        starts[owner.attempt] = min(modified, starts.get(owner.attempt, modified))
    info = layout.new_run(
        min(starts.values(), default=now),
        world_size=1 + max((owner.rank for owner in owners), default=0),
        attempts=[{"attempt": a, "started": t} for a, t in sorted(starts.items())],
        status="stopped",
        reason="run.json was lost and written anew by lldscope doctor",
        ended=now,
    )
    layout.write_run(run, info)
