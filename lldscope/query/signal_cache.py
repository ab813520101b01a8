"""Signals of long runs, cached on disk: sealed parts never change, nor do their signals.

An entry lists the parts from which its signals were computed, and has a Parquet file per table of
signals. Signals of newer rows are computed as for a live run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.schema import VIEWS
from ..storage.cache import Cache, cache_dir
from ..storage.part import Part
from .database import Database

MAX_RUNS = 200


class SignalCache:
    """The cached signals of one user."""

    def __init__(self, folder: Path) -> None:
        self._cache = Cache(folder, MAX_RUNS)

    def load(self, run_id: Any, database: Database) -> list[Part]:
        """Load the cached signals of a run into its database. Returns the parts from which they
        were computed; none without a valid entry. Copies of a run share its id, so the entry may be
        of another copy: the reader compares part by part (`PartIndex.update`)."""

        def read(folder: Path, state: dict[str, Any]) -> list[Part]:
            from pyarrow import parquet as pq  # only where there is something to load

            parts = [Part(**p) for p in state["parts"]]
            for name in state["tables"]:
                # read_table would import pandas.
                with pq.ParquetFile(folder / f"{name}.parquet") as file:
                    database.put(name, file.read())
            return parts

        parts = None if run_id is None else self._cache.load(str(run_id), read)
        if parts is None:
            database.forget_signals()  # of an entry that was read in part
        return parts or []

    def store(self, run_id: Any, parts: list[Part], database: Database) -> None:
        """Cache the signals of a run, computed from these parts. Errors of the disk are ignored."""
        if run_id is None or any(p.crc is None for p in parts):
            return  # without an id and checksums, the run cannot be recognised next time
        tables = {name: t for name in VIEWS if (t := database.rows(name)) is not None}

        def write(folder: Path) -> None:
            from pyarrow import parquet as pq

            for name, table in tables.items():
                pq.write_table(table, folder / f"{name}.parquet", compression="zstd")

        state = {"parts": [vars(p) for p in parts], "tables": [*tables]}
        self._cache.store(str(run_id), state, write)


def user_cache() -> SignalCache | None:
    """The signals that commands and the dashboard of this user share; None for a user without a
    home directory."""
    try:
        return SignalCache(cache_dir() / "signals")
    except RuntimeError:
        return None
