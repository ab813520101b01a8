"""Writes items of the sources as parts of a run directory, which replaces an earlier import.

A mean becomes a row of `scalars` (`means`), and its step a row of `steps`; rollouts arrive as rows
of `recording.columns`, with sums over the imported ones.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..core.errors import LldscopeError, RunExists
from ..core.schema import TABLES
from ..recording.buffers import to_arrow
from ..storage import heartbeats, layout
from ..storage.manifest import MANIFEST_DIR, commit, manifest_path
from ..storage.part import PartName, write_part
from .means import ScalarBuffer
from .source import Findings, Rows, Scalars

PIECE = 200_000  # buffered values after which a part is written
MAX_STEPS = 1_000_000  # of a run, restarted steps counted again
MAX_ATTEMPTS = 1000
CHARACTERS = 64  # of a rollout's text that count as one value


class RunWriter:
    """Writes the rows of one run. Means come before rows, because means determine the attempts."""

    def __init__(self, run: Path, findings: Findings) -> None:
        self.run, self.findings = run, findings
        self.rows: Counter[str] = Counter()  # by table
        self.times: tuple[float, float] | None = None
        self.first_steps: dict[int, int] = {}  # attempt → its first step, from the means
        self.live = False  # whether items without a time happen now
        self.after = 0  # attempts before the file began anew
        self._attempt_steps: set[tuple[int, int]] = set()
        self._means = ScalarBuffer()
        self._steps: dict[int, tuple[list[int], list[float | None]]] = {}  # and times, by attempt
        self._tables: dict[tuple[str, int], list[pa.Table]] = {}  # by table and attempt
        self._seals: Counter[int] = Counter()
        self._waiting = 0
        self._rewarded = False  # whether a rollout had a reward
        for folder in (MANIFEST_DIR, heartbeats.HEARTBEAT_DIR):
            (run / folder).mkdir(parents=True, exist_ok=True)

    def write(self, item: Scalars | Rows) -> None:
        if isinstance(item, Scalars):
            self._scalars(item)
        else:
            self._rows(item)
        if self._waiting >= PIECE:
            self.flush()

    @property
    def has_reward(self) -> bool:
        return self._rewarded or bool({"reward", "success"} & self._means.signals)

    @property
    def attempts(self) -> list[int]:
        return sorted({attempt for attempt, _ in self._attempt_steps})

    @property
    def steps(self) -> int:
        return len({step for _, step in self._attempt_steps})

    def _scalars(self, item: Scalars) -> None:
        if not 0 <= item.step < 2**31:
            self.findings.skip("entries with an invalid step")
            return
        attempt = item.attempt + self.after
        first = self.first_steps.get(attempt, item.step)
        self.first_steps[attempt] = min(first, item.step)
        at = time.time() if self.live and item.time is None else item.time
        if at is not None:
            low, high = self.times or (at, at)
            self.times = min(low, at), max(high, at)
        if at is not None or (attempt, item.step) not in self._attempt_steps:
            self._know(attempt, item.step)
            steps, times = self._steps.setdefault(attempt, ([], []))
            steps.append(item.step)
            times.append(at)
            self._waiting += 1
        n = self._means.add(attempt, item.step, item.values, self.findings)
        self.rows["scalars"] += n
        self._waiting += n

    def _rows(self, item: Rows) -> None:
        attempt = self._attempt_of(item.step)
        self._know(attempt, item.step)
        for table, columns in item.tables.items():
            self._put(table, attempt, columns)
        self._rewarded |= item.tables["steps"]["reward_sum"] is not None
        texts = item.tables["responses"]["text"]
        self._waiting += sum(len(text or "") for text in texts) // CHARACTERS

    def _know(self, attempt: int, step: int) -> None:
        """Remember a step. Raises LldscopeError beyond the limits on steps or attempts."""
        if attempt > MAX_ATTEMPTS:
            raise LldscopeError(
                f"The steps go back more than {MAX_ATTEMPTS:,} times: not the log of one run. "
                "Say which column counts the steps (--map step=NAME), or import each run alone."
            )
        self._attempt_steps.add((attempt, step))
        if len(self._attempt_steps) > MAX_STEPS:
            raise LldscopeError(
                f"There are more than {MAX_STEPS:,} steps: not the log of one run. Say which "
                "column counts the steps (--map step=NAME)."
            )

    def _attempt_of(self, step: int) -> int:
        """The attempt that counts at a step: the last one that began at or before it."""
        return max((a for a, first in self.first_steps.items() if first <= step), default=1)

    def _put(self, table: str, attempt: int, columns: dict[str, Any]) -> None:
        """Buffer rows for the next part of a table."""
        rows = to_arrow(table, columns, attempt, 0, self.findings.skip)
        if rows is not None:
            self._tables.setdefault((table, attempt), []).append(rows)
            self.rows[table] += len(rows)
            self._waiting += len(rows)

    def flush(self) -> None:
        """Write the buffered rows to disk, one seal per attempt."""
        for attempt, (steps, times) in self._steps.items():
            self._put("steps", attempt, {"step": steps, "time": times})
        self._steps = {}
        attempts = {attempt for _, attempt in self._tables} | self._means.attempts
        for attempt in sorted(attempts):
            self._seals[attempt] += 1
            name = PartName(attempt, 0, self._seals[attempt], self._seals[attempt])
            parts = []
            for table in TABLES:
                rows = self._tables.pop((table, attempt), [])
                if table == "scalars":
                    rows += self._means.tables(attempt, self.findings)
                part = rows and write_part(self.run, table, name, [pa.concat_tables(rows)])
                parts += [part] if part else []
            manifest_path(self.run, attempt, 0).touch()
            commit(self.run, (attempt, 0), parts)
        self._waiting = 0


def earlier_import(run: Path) -> dict[str, Any]:
    """run.json of an earlier import. Raises RunExists for anything else at the path."""
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
    """Move a complete run to its path; an earlier import there is removed."""
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
