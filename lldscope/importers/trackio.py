"""Trackio's databases: one SQLite file a project, in ~/.cache/huggingface/trackio.

Schema: trackio's sqlite_storage.py (table `metrics`; `metrics.metrics` is JSON in which NaN and Inf
are the strings "NaN", "Infinity" and "-Infinity"). None of Trackio is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .logged import LoggerCalls, chosen
from .source import Findings, Rows, Scalars
from .sqlite import MAGIC, opened, rows, tables


class Trackio:
    name = "trackio"
    description = "Trackio's SQLite databases (PROJECT.db), metrics of one run"

    def looks_like(self, path: Path, head: bytes) -> bool:
        columns = {"run_name", "step", "timestamp", "metrics"}
        return head.startswith(MAGIC) and columns <= tables(path).get("metrics", set())

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars | Rows]:
        for path in paths:
            if not self.looks_like(path, MAGIC):  # as when the format was forced
                findings.skip("files that are no database of Trackio")
                continue
            calls = LoggerCalls(findings)
            with opened(path) as connection:
                # The tables of older versions have no run_id.
                columns = {row[1] for row in connection.execute("PRAGMA table_info(metrics)")}
                own = "run_id" if "run_id" in columns else "run_name"
                runs = dict(
                    connection.execute(f"SELECT {own}, max(run_name) FROM metrics GROUP BY 1")
                )
                run = chosen(findings.request.run, runs, path)
                select = f"SELECT {own}, step, timestamp, metrics FROM metrics NOT INDEXED WHERE 1"
                for of, step, time, text in rows(connection, select, "metrics", findings):
                    if of != run:
                        continue
                    try:
                        row: Any = json.loads(text)
                    except (TypeError, ValueError, RecursionError):
                        row = None
                    if not isinstance(row, dict):
                        findings.skip("rows that are no metrics of Trackio")
                    elif scalars := calls.record(row, step, _seconds(time)):
                        yield scalars


def _seconds(text: object) -> float | None:
    """Unix time of an ISO date, in UTC unless it says otherwise; None if it is none."""
    try:
        moment = datetime.fromisoformat(str(text))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
