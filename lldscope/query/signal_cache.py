"""Signals of long runs, cached on disk: sealed parts never change, nor do their signals.

The cache is in the reader's own folder, never in the run: one folder per run with `state.json`
(which parts the signals were computed from) and a Parquet file per table of signals. An entry that
does not match exactly is ignored, and its signals are computed again. Signals of newer rows are
computed as for a live run.
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

from ..core.schema import SCHEMA_VERSION
from ..storage import json_files
from ..storage.part import Part
from .database import Database
from .views import ROLLOUT_VIEWS, STEP_VIEWS, STORED, view_sql

GROUP_ROWS = 20_000  # that are in memory as they are read
MAX_RUNS = 200  # the entries written longest ago are deleted first


class SignalCache:
    """The cached signals of one user, in a folder that only this user can read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, run_id: Any, database: Database) -> list[Part]:
        """Load the cached signals of a run into its database; returns the parts they are of, none
        if there is no valid entry. Copies of a run share its id, so the entry may be of another
        copy: the reader compares part by part (`PartIndex.update`)."""
        if run_id is None:
            return []
        folder = self._place(run_id)
        if not folder.is_dir():
            return []
        from pyarrow import parquet as pq  # only where there is something to load

        try:
            state = json.loads(json_files.read_bytes(folder / "state.json", folder))
            if state["made"] != _code_version():
                return []
            parts = [Part(**p) for p in state["parts"]]
            for name in state["tables"]:
                with pq.ParquetFile(
                    folder / f"{STORED[name]}.parquet"
                ) as file:  # read_table: pandas
                    for group in range(file.num_row_groups):
                        database.put(name, file.read_row_group(group))
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, duckdb.Error):
            database.forget_signals()
            return []
        return parts

    def store(self, run_id: Any, parts: list[Part], database: Database) -> None:
        """Cache the signals of a run, computed from these parts. Errors of the disk are ignored."""
        if run_id is None or any(p.crc is None for p in parts):
            return  # without an id and checksums, the run cannot be recognised next time
        from pyarrow import parquet as pq

        final = self._place(run_id)
        new = final.with_name(f"{final.name}.{os.getpid()}.new")
        with suppress(OSError, pa.ArrowException, duckdb.Error):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(mode=0o700)
            tables = {n: t for n in STORED if (t := database.rows(n)) is not None}
            for name, table in tables.items():
                file = new / f"{STORED[name]}.parquet"
                pq.write_table(table, file, compression="zstd", row_group_size=GROUP_ROWS)
            state = {
                "made": _code_version(), "parts": [vars(p) for p in parts], "tables": [*tables]
            }  # fmt: skip
            (new / "state.json").write_text(json.dumps(state))
            shutil.rmtree(final, ignore_errors=True)
            new.rename(final)
            newest = sorted(self._folder.iterdir(), key=lambda p: -p.stat().st_mtime)
            for old in newest[MAX_RUNS:]:
                shutil.rmtree(old, ignore_errors=True)

    def _place(self, run_id: Any) -> Path:
        return self._folder / hashlib.sha256(str(run_id).encode(errors="replace")).hexdigest()[:32]


def cache_dir() -> Path:
    """The folder for caches of this user, in the XDG cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lldscope"


def user_cache() -> SignalCache | None:
    """The signals that commands and the dashboard of this user share; None for a user without a
    home directory."""
    try:
        return SignalCache(cache_dir() / "signals")
    except RuntimeError:
        return None


@cache
def _code_version() -> str:
    """Changes whenever the same parts could give other signals."""
    made = hashlib.sha256(f"{SCHEMA_VERSION} {duckdb.__version__}".encode())
    for name in ("macros", *ROLLOUT_VIEWS, *STEP_VIEWS):
        made.update(view_sql(name).encode())
    return made.hexdigest()
