"""Where an imported run goes: it replaces an earlier import, and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from ..core.errors import RunExists
from ..storage import layout


def earlier_import(run: Path) -> dict[str, Any]:
    """run.json of an earlier import. Raises RunExists for whatever else is at the place."""
    if not run.exists() or (run.is_dir() and not any(run.iterdir())):
        return {}
    if not (run / layout.RUN_FILE).is_file():
        raise RunExists(f"{run} is there and is not a run. Choose another place with --to.")
    info = layout.read_run(run)
    if "imported" not in info:
        raise RunExists(
            f"{run} holds a run that was recorded, not imported. Choose another place with --to."
        )
    return info


def move_into_place(new: Path, place: Path) -> None:
    """Move a complete run to its place; an earlier import there is removed."""
    old = place.with_name(f"{new.name}.old")
    if place.exists():
        os.replace(place, old)
    try:
        os.replace(new, place)
    except OSError:
        if old.exists():
            os.replace(old, place)
        raise
    shutil.rmtree(old, ignore_errors=True)
