"""Writes items of the sources as parts of a run directory, which replaces an earlier import.

A mean becomes a row of `scalars`, under the signal's name if `mapping` knows it, and its step a row
of `steps`. Rollouts arrive as rows of `recording.columns`, with sums over the imported ones.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import LldscopeError, RunExists
from ..core.schema import COMPONENT, TABLES, arrow_schema
from ..recording.buffers import to_arrow
from ..storage import heartbeats, layout
from ..storage.manifest import MANIFEST_DIR, commit, manifest_path
from ..storage.part import Owner, PartName, write_part
from .mapping import SIGNAL_NAMES, Meaning, assign
from .source import Findings, Rows, Scalars

PIECE = 200_000  # buffered values after which a part is written
MAX_STEPS = 1_000_000  # of a run, restarted steps counted again
MAX_ATTEMPTS = 1000
CHARACTERS = 64  # of a rollout's text that count as one value
MAX_NAMES = 10_000  # of metrics; a file with more is not a log
MAX_NAME_LENGTH = 500

Names = tuple[str, ...]  # foreign ones, of one entry


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
        self._means = _Means()
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
            name = PartName(Owner(attempt, 0), self._seals[attempt], self._seals[attempt])
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


class _Means:
    """Buffer of means computed by other programs. Consecutive entries with the same names wait as
    plain numbers and become columns together."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, Names], tuple[list[int], list[float]]] = {}
        self._seen: set[str] = set()
        self.signals: set[str] = set()  # that any mean stood for

    @property
    def attempts(self) -> set[int]:
        return {attempt for attempt, _ in self._waiting}

    def add(self, attempt: int, step: int, values: dict[str, float], findings: Findings) -> int:
        """Buffer one entry of a log; returns how many of its values were accepted."""
        if not values.keys() <= self._seen:
            values = self._of_seen(values, findings)
        if values:
            steps, waiting = self._waiting.setdefault((attempt, tuple(values)), ([], []))
            steps.append(step)
            waiting += values.values()
        return len(values)

    def tables(self, attempt: int, findings: Findings) -> list[pa.Table]:
        """The buffered rows of an attempt as rows of `scalars`. The largest float stands for Inf:
        MLflow stores Inf so in databases."""
        schema = arrow_schema("scalars")
        tables = []
        for names in [names for a, names in self._waiting if a == attempt]:
            steps, values = self._waiting.pop((attempt, names))
            ours = self._meanings(names, findings).values()
            factors = np.tile([m.factor for m in ours], len(steps))
            of_names = np.tile(np.arange(len(names)), len(steps))
            numbers = np.array(values, np.float64)
            largest = np.abs(numbers) >= np.finfo(np.float64).max
            numbers[largest] = np.copysign(np.inf, numbers[largest])
            columns = {
                "step": pa.array(np.repeat(steps, len(names))),
                "attempt": pa.repeat(attempt, len(values)),
                "rank": pa.repeat(0, len(values)),
                "name": pa.array([m.signal for m in ours]).take(of_names),
                "value": pa.array(numbers * factors),
                "estimator": pa.array([m.estimator for m in ours], pa.string()).take(of_names),
            }
            tables.append(pa.table([columns[n] for n in schema.names], schema.names).cast(schema))
        return tables

    def _of_seen(self, values: dict[str, float], findings: Findings) -> dict[str, float]:
        """Values whose names are already known; after MAX_NAMES, new names are dropped."""
        if long := [name for name in values if len(name) > MAX_NAME_LENGTH]:
            findings.skip(f"metrics with a name of over {MAX_NAME_LENGTH} characters", len(long))
            values = {name: value for name, value in values.items() if len(name) <= MAX_NAME_LENGTH}
        fresh = [name for name in values if name not in self._seen]
        self._seen.update(islice(fresh, MAX_NAMES - len(self._seen)))
        accepted = {name: value for name, value in values.items() if name in self._seen}
        if len(accepted) < len(values):
            reason = f"values of metrics beyond the first {MAX_NAMES:,}"
            findings.skip(reason, len(values) - len(accepted))
        return accepted

    def _meanings(self, names: Names, findings: Findings) -> dict[str, Meaning]:
        """The recorded name of each metric; differences are noted in the findings."""
        request = {foreign: ours for ours, foreign in findings.request.columns.items()}
        result = assign(names, request, findings.aggregation)
        findings.all_names |= result.keys()
        for name, m in result.items():
            if m.signal in SIGNAL_NAMES:
                self.signals.add(m.signal)
                if about := "; ".join(filter(None, (m.estimator, m.caution))):
                    times = "" if m.factor == 1 else f" times {m.factor:g}"
                    note = f"{name}{times} stands for {m.signal}: {about}."
                    findings.differences[note] = None
            elif not m.signal.startswith(COMPONENT):
                findings.names.add(name)
        return result


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
