"""Whether a run directory is intact: what is on disk, compared with what the manifests list.

`examine` only reads. Damage means that rows which were once sealed are lost; a warning is something
to know or to clean up; a note explains. `repair` never touches what a running recorder writes,
moves damaged parts into quarantine, and lists parts again whose manifest line is lost. What it
cannot restore stays reported.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..core.errors import LldscopeError, NewerSchema
from ..storage import compaction, json_files, layout
from ..storage.events import read_journals
from ..storage.heartbeats import HEARTBEAT_DIR, read_heartbeats
from ..storage.integrity import UNFINISHED, unlisted_files
from ..storage.manifest import MANIFEST_DIR, manifest_names, manifest_path
from . import repairs
from .findings import Context, Examination, Finding, Owner
from .part_checks import check_parts, check_unlisted_files

LOW_DISK = 1 << 30  # bytes
CLOCK_SECONDS = 60.0  # clocks of several machines may differ by this much


def examine(run: Path) -> Examination:
    """Check every file of a run. Raises RunNotFound, NewerSchema."""
    result = Examination(run)
    info, findings = _check_run_file(run)
    manifest, owners = layout.read_manifest(run), manifest_names(run)
    status = {owner: compaction.still_writing(run, *owner, manifest) for owner in owners}
    recording = {owner: why for owner, why in status.items() if why}
    bad_heartbeats: dict[str, str] = {}
    beats = read_heartbeats(run, bad_heartbeats)
    bad_heartbeats = layout.missing_heartbeats(manifest, beats) | bad_heartbeats
    context = Context(run, info, manifest, owners, recording, beats)
    findings += check_manifests(context)
    findings += check_journals(context)
    findings += check_parts(context, result)
    findings += check_unlisted_files(context)
    findings += _warnings("heartbeat", bad_heartbeats)
    findings += check_writers(context)
    findings += check_clocks(context)
    findings += check_dropped_rows(context)
    result.findings = findings
    return result


def repair(examination: Examination) -> Examination:
    """Do what the findings offer, in their order, and examine again. Raises OSError."""
    done = [f for f in examination.findings if f.action is not None]
    for finding in done:
        assert finding.action is not None
        finding.action()
        finding.repaired = True
    result = examine(examination.run)
    result.findings = done + result.findings
    return result


def _warnings(what: str, damaged: dict[str, str]) -> list[Finding]:
    return [Finding("warning", what, where, f"{why}.") for where, why in damaged.items()]


def _check_run_file(run: Path) -> tuple[dict[str, Any], list[Finding]]:
    """The content of run.json, and what is wrong with it."""
    damaged: dict[str, str] = {}
    try:
        return layout.read_run(run, damaged), _warnings("run-json", damaged)
    except NewerSchema:
        raise
    except LldscopeError as error:
        if not (run / MANIFEST_DIR).is_dir():
            raise  # not a run
        offer = "write a new one; configuration and the rule for correct are lost"
        action = partial(repairs.rebuild_run_file, run)
        return {}, [Finding("damage", "run-json", layout.RUN_FILE, str(error), offer, action)]


def check_manifests(context: Context) -> Iterator[Finding]:
    run = context.run
    owners = {*context.owners, *(f.name.owner for f in unlisted_files(run, context.manifest))}
    owner_of = {context.name(manifest_path(run, *owner)): owner for owner in owners}
    for where, why in context.manifest.damaged.items():
        owner = owner_of.get(where.split(" ")[0])
        if owner is None or owner in context.recording:
            yield Finding("damage", "manifest", where, f"{why}.")
        else:
            offer = "keep the lines that can be read, and list intact parts again"
            action = partial(repairs.rewrite_manifest, run, owner)
            yield Finding("damage", "manifest", where, f"{why}.", offer, action)


def check_journals(context: Context) -> list[Finding]:
    """Lines of events, alerts and notes that cannot be read, as every reader reports them."""
    damaged: dict[str, str] = {}
    read_journals(context.run, damaged)
    return [Finding("damage", "lines", where, f"{why}.") for where, why in damaged.items()]


def check_writers(context: Context) -> Iterator[Finding]:
    """Recorders that are running or were not closed, and what they left."""
    run, manifest = context.run, context.manifest
    for owner in context.owners:
        if owner in manifest.closed or _closed_by_heartbeat(context, owner):
            continue
        where = "attempt {}, rank {}".format(*owner)
        if owner in context.recording:
            yield Finding("note", "recording", where, f"{context.recording[owner]}.")
            continue
        last = max((p.last_step for p in manifest.parts if p.name.owner == owner), default=None)
        sealed = "nothing was sealed" if last is None else f"the last sealed step is {last}"
        message = (
            f"the process ended without closing its recorder; {sealed}, and rows after it that "
            "were not sealed yet, about a second's worth, are lost."
        )
        yield Finding("warning", "not-closed", where, message)
    for path in sorted(run.glob(f"**/*{json_files.IN_PROGRESS}")):
        if path.parent in (run, run / HEARTBEAT_DIR) and not context.recording:
            action = partial(path.unlink, missing_ok=True)
            where = context.name(path)
            yield Finding("note", "leftover", where, f"{UNFINISHED}.", "remove it", action)
    if context.info.get("status") == "running" and context.owners and not context.recording:
        message = "its status is running, but no process records the run."
        yield Finding("note", "status", layout.RUN_FILE, message)


def _closed_by_heartbeat(context: Context, owner: Owner) -> bool:
    """Whether a run of an earlier version was closed: only its last heartbeat says so."""
    beat = context.heartbeats.get(owner[1])
    return beat is not None and "attempt" not in beat and bool(beat.get("closed"))


def check_clocks(context: Context) -> Iterator[Finding]:
    """A clock that is ahead: `stalled` compares its heartbeats with this machine's clock."""
    for rank, beat in sorted(context.heartbeats.items()):
        ahead = beat["time"] - time.time()
        if ahead > CLOCK_SECONDS:
            message = (
                f"its heartbeat is {ahead:.0f} s ahead of this machine's clock: a stall would be "
                "noticed that much later."
            )
            yield Finding("warning", "clock", f"rank {rank}", message)


def check_dropped_rows(context: Context) -> Iterator[Finding]:
    for rank, beat in sorted(context.heartbeats.items()):
        drops = beat.get("dropped")
        for what, count in drops.items() if isinstance(drops, dict) else ():
            yield Finding("warning", "dropped", f"rank {rank}", f"{count} × {what}.")
    free = shutil.disk_usage(context.run).free
    if context.recording and free < LOW_DISK:
        message = f"{free >> 20} MiB are left on its file system."
        yield Finding("warning", "disk", str(context.run), message)
