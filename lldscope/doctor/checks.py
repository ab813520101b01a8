"""Whether a run directory is intact: what is on disk, compared with what the manifests list.

`examine` only reads. Damage means that rows which were once sealed are lost; a warning is something
to know or to clean up; a note explains. `repair` never touches what a running recorder writes,
moves damaged parts into quarantine, and lists parts again whose manifest line is lost. What it
cannot restore stays reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ..core.errors import LldscopeError, NewerSchema
from ..storage import compaction, json_files, layout
from ..storage.events import read_journals
from ..storage.heartbeats import HEARTBEAT_DIR, read_heartbeats
from ..storage.integrity import UNFINISHED, unlisted_files
from ..storage.manifest import MANIFEST_DIR, manifest_file
from . import repairs
from .findings import Context, Examination, Finding
from .part_checks import check_parts, check_unlisted_files


def examine(run: Path) -> Examination:
    """Check every file of a run. Raises RunNotFound, NewerSchema."""
    findings = _check_run_file(run)
    manifest = layout.read_manifest(run)
    status = {owner: compaction.still_writing(run, *owner, manifest) for owner in manifest.owners}
    recording = {owner: why for owner, why in status.items() if why}
    bad_heartbeats: dict[str, str] = {}
    beats = read_heartbeats(run, bad_heartbeats)
    bad_heartbeats = layout.missing_heartbeats(manifest, beats) | bad_heartbeats
    context = Context(run, manifest, recording, beats)
    result = Examination(run, len(manifest.parts), Counter(), findings)
    findings += check_manifests(context)
    findings += check_journals(run)
    findings += check_parts(context, result)
    findings += check_unlisted_files(context)
    findings += _warnings("heartbeat", bad_heartbeats)
    findings += check_writers(context)
    findings += check_dropped_rows(context)
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


def _check_run_file(run: Path) -> list[Finding]:
    damaged: dict[str, str] = {}
    try:
        layout.read_run(run, damaged)
        return _warnings("run-json", damaged)
    except NewerSchema:
        raise
    except LldscopeError as error:
        if not (run / MANIFEST_DIR).is_dir():
            raise  # not a run
        offer = "write a new one; configuration and the rule for correct are lost"
        action = partial(repairs.rebuild_run_file, run)
        return [Finding("damage", "run-json", layout.RUN_FILE, str(error), offer, action)]


def check_manifests(context: Context) -> Iterator[Finding]:
    run, manifest = context.run, context.manifest
    owners = {*manifest.owners, *(f.name.owner for f in unlisted_files(run, manifest))}
    owner_of = {manifest_file(*owner): owner for owner in owners}
    for where, why in manifest.damaged.items():
        owner = owner_of.get(where)
        if owner is None or owner in context.recording:
            yield Finding("damage", "manifest", where, f"{why}.")
        else:
            offer = "keep the lines that can be read, and list intact parts again"
            action = partial(repairs.rewrite_manifest, run, owner)
            yield Finding("damage", "manifest", where, f"{why}.", offer, action)


def check_journals(run: Path) -> list[Finding]:
    """Lines of events, alerts and notes that cannot be read, as every reader reports them."""
    damaged: dict[str, str] = {}
    read_journals(run, damaged)
    return [Finding("damage", "lines", where, f"{why}.") for where, why in damaged.items()]


def check_writers(context: Context) -> Iterator[Finding]:
    """Recorders that are running or were not closed, and what they left."""
    run, manifest = context.run, context.manifest
    for owner in manifest.owners:
        beat = context.heartbeats.get(owner[1], {})
        closed_by_heartbeat = "attempt" not in beat and bool(beat.get("closed"))  # earlier versions
        if owner in manifest.closed or closed_by_heartbeat:
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
    for path in [*run.glob(f"*{json_files.IN_PROGRESS}"),
                 *(run / HEARTBEAT_DIR).glob(f"*{json_files.IN_PROGRESS}")]:
        if not context.recording:
            action = partial(path.unlink, missing_ok=True)
            where = path.relative_to(run).as_posix()
            yield Finding("note", "leftover", where, f"{UNFINISHED}.", "remove it", action)


def check_dropped_rows(context: Context) -> Iterator[Finding]:
    for rank, beat in sorted(context.heartbeats.items()):
        drops = beat.get("dropped")
        for what, count in drops.items() if isinstance(drops, dict) else ():
            yield Finding("warning", "dropped", f"rank {rank}", f"{count} × {what}.")
