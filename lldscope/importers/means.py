"""Means computed by other programs, converted to rows of `scalars`.

A row has the signal's name if `mapping` knows it. Consecutive entries with the same names wait as
plain numbers and become columns together.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pyarrow as pa

from ..core.schema import COMPONENT, arrow_schema
from .mapping import SIGNAL_NAMES, Meaning, assign
from .source import Findings

MAX_NAMES = 10_000  # of metrics; a file with more is not a log
MAX_NAME_LENGTH = 500

Names = tuple[str, ...]  # foreign ones, of one entry


class ScalarBuffer:
    """Buffer of rows."""

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
