"""Whether a run directory is whole: what is on disk against what the manifests promise.

`examine` only looks. Damage is what takes rows away that were once sealed; a warning is what
somebody should know or tidy up; a note explains. `repair` never touches what a living recorder
writes, moves damaged parts aside rather than deleting them, and lists parts again whose manifest
line is lost. What it cannot bring back it leaves named.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ..core.errors import LldscopeError, NewerSchema
from ..core.schema import SCHEMA_VERSION
from ..storage import compaction, json_files, layout
from ..storage.manifest import MANIFEST_DIR, manifest_names, manifest_path
from .files import set_aside
from .findings import Examination, Finding, Location, Severity
from .parts import check_manifests, check_parts, check_unlisted_files, unused
from .writers import check_clocks, check_dropped_rows, check_writers

__all__ = ["Examination", "Finding", "Severity", "examine", "repair"]


def examine(run: Path) -> Examination:
    """Look at every file of a run. Raises RunNotFound, NewerSchema."""
    result = Examination(run)
    info, result.findings = _read_info(run)
    manifest, names = layout.read_manifest(run), manifest_names(run)
    living = {
        name: why for name in names if (why := compaction.still_writing(run, *name, manifest))
    }
    at = Location(run, info, manifest, names, living)
    result.findings += check_manifests(at)
    result.findings += check_parts(at, result)
    for look in (check_unlisted_files, check_writers, check_clocks, check_dropped_rows):
        result.findings += look(at)
    return result


def repair(examination: Examination) -> Examination:
    """Do what the findings offer, in their order, and look again. Raises OSError."""
    done = [f for f in examination.findings if f.action is not None]
    for finding in done:
        assert finding.action is not None
        finding.action()
        finding.repaired = True
    again = examine(examination.run)
    again.findings = done + again.findings
    return again


def _read_info(run: Path) -> tuple[dict[str, Any], list[Finding]]:
    """run.json, and what is wrong with it."""
    odd: dict[str, str] = {}
    try:
        info = layout.read_run(run, odd)
    except NewerSchema:
        raise
    except LldscopeError as error:
        if not (run / MANIFEST_DIR).is_dir():
            raise  # not a run
        offer = "write a new one; configuration and the rule for correct are lost"
        return {}, [
            Finding(
                "damage", "run-json", layout.RUN_FILE, str(error), offer,
                action=lambda: _rebuild_info(run),
            )
        ]  # fmt: skip
    return info, [Finding("warning", "run-json", where, f"{why}.") for where, why in odd.items()]


def _rebuild_info(run: Path) -> None:
    path, names = run / layout.RUN_FILE, manifest_names(run)
    if path.exists():
        set_aside(run, path, unused(run, layout.RUN_FILE), "it could not be read")
    now = time.time()
    attempts = sorted({attempt for attempt, _ in names})
    began = {
        a: min(manifest_path(run, *n).stat().st_mtime for n in names if n[0] == a) for a in attempts
    }
    info = {
        "schema": SCHEMA_VERSION,
        "id": os.urandom(16).hex(),
        "name": run.name,
        "created": min(began.values(), default=now),
        "world_size": 1 + max((rank for _, rank in names), default=0),
        "attempts": [{"attempt": a, "started": began[a]} for a in attempts],
        "status": "stopped",
        "reason": "run.json was lost and written anew by lldscope doctor",
        "ended": now,
    }
    json_files.replace_file(path, json_files.to_json(info, indent=1))
