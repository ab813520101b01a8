"""Signals of long runs, kept between openings: sealed parts never change, nor do their signals.

A folder of the reader's own, never the run's: one folder per run with `state.json` (which parts
the signals were computed from) and a Parquet file per table of signals. Whatever does not fit
exactly is passed over, and the signals are computed again. Rows that came since are computed as
those of a live run are.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.schema import SCHEMA_VERSION
from ..storage import json_files
from ..storage.part import Part
from .database import ROWS, VIEW_NAMES, Database, view_sql

MOST_KEPT = 200  # runs; the one that was kept longest ago goes first


class SignalCache:
    """What one reader keeps, in a folder that only its user can read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, run_id: Any, into: Database) -> list[Part]:
        """Put the signals that are kept for a run into its database; the parts they stand for.
        Empty if nothing is kept that fits. Copies of a run share its id: what is kept may be of
        another one, and the reader compares part by part (`Listed.take`)."""
        if run_id is None:
            return []
        folder = self._place(run_id)
        try:
            state = json.loads(json_files.read_bytes(folder / "state.json", folder))
            if state["made"] != _made():
                return []
            parts = [Part(**p) for p in state["parts"]]
            for rows in ROWS:
                table = pq.read_table(folder / f"{rows}.parquet", memory_map=False)
                into.put(rows, table)
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, duckdb.Error):
            into.forget_signals()
            return []
        return parts

    def keep(self, run_id: Any, parts: list[Part], of: Database) -> None:
        """Keep the signals of a run, computed from these parts. What the disk refuses is not."""
        if run_id is None or any(p.crc is None for p in parts):
            return  # nothing says that this run or these files will be the same ones next time
        final = self._place(run_id)
        new = final.with_name(f"{final.name}.{os.getpid()}.new")
        with suppress(OSError, pa.ArrowException, duckdb.Error):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(mode=0o700)
            for rows in ROWS:
                pq.write_table(of.rows(rows), new / f"{rows}.parquet", compression="zstd")
            state = {"made": _made(), "parts": [vars(p) for p in parts]}
            (new / "state.json").write_text(json.dumps(state))
            shutil.rmtree(final, ignore_errors=True)
            new.rename(final)
            for old in self._oldest():
                shutil.rmtree(old, ignore_errors=True)

    def _place(self, run_id: Any) -> Path:
        return self._folder / hashlib.sha256(str(run_id).encode(errors="replace")).hexdigest()[:32]

    def _oldest(self) -> list[Path]:
        kept = sorted(self._folder.iterdir(), key=lambda p: -p.stat().st_mtime)
        return kept[MOST_KEPT:]


def cache_dir() -> Path:
    """Where this user's readers keep what they have computed: in the XDG cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lldscope"


@cache
def _made() -> str:
    """Changes whenever the same parts could give other signals."""
    made = hashlib.sha256(f"{SCHEMA_VERSION} {duckdb.__version__}".encode())
    for name in VIEW_NAMES:
        made.update(view_sql(name).encode())
    return made.hexdigest()
