"""Means that somebody else computed, on their way into rows of `scalars`.

They stand there under the signal's name where `mapping` knows it. Entries of a log hold the same
names over and over: those wait together as plain numbers, and become columns at once.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pyarrow as pa

from ..core.schema import arrow_schema
from .mapping import SIGNAL_NAMES, Meaning, meaning, why_kept
from .source import Findings

MOST_NAMES = 10_000  # of metrics; a log with more of them is none
MOST_SETS = 1000  # of names of an entry that are remembered

Names = tuple[str, ...]  # foreign ones, of one entry


class Means:
    """What waits to be written."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, Names], tuple[list[int], list[float]]] = {}
        self._seen: set[str] = set()
        self._ours: dict[Names, list[tuple[str, str | None]]] = {}

    @property
    def attempts(self) -> set[int]:
        return {attempt for attempt, _ in self._waiting}

    def take(self, attempt: int, step: int, values: dict[str, float], found: Findings) -> int:
        """One entry of a log; how many of its values were taken."""
        if not values.keys() <= self._seen:
            values = self._of_seen(values, found)
        if values:
            steps, waiting = self._waiting.setdefault((attempt, tuple(values)), ([], []))
            steps.append(step)
            waiting += values.values()
        return len(values)

    def tables(self, attempt: int, found: Findings) -> list[pa.Table]:
        """What waits of an attempt, as rows of `scalars` in one table; none if nothing does."""
        schema = arrow_schema("scalars")
        tables = []
        for names in [names for a, names in self._waiting if a == attempt]:
            steps, values = self._waiting.pop((attempt, names))
            ours, estimators = zip(*self._named(names, found), strict=True)
            of_names = np.tile(np.arange(len(names)), len(steps))
            columns = {
                "step": pa.array(np.repeat(steps, len(names))),
                "attempt": pa.repeat(attempt, len(values)),
                "rank": pa.repeat(0, len(values)),
                "name": pa.array(ours).take(of_names),
                "value": pa.array(np.array(values, np.float64)),
                "estimator": pa.array(estimators, pa.string()).take(of_names),
            }
            tables.append(pa.table([columns[n] for n in schema.names], schema.names).cast(schema))
        return [pa.concat_tables(tables)] if tables else []

    def _of_seen(self, values: dict[str, float], found: Findings) -> dict[str, float]:
        """Values without those of names that come when there are MOST_NAMES."""
        fresh = [name for name in values if name not in self._seen]
        self._seen.update(islice(fresh, MOST_NAMES - len(self._seen)))
        told = {name: value for name, value in values.items() if name in self._seen}
        if len(told) < len(values):
            reason = f"values of metrics beyond the first {MOST_NAMES:,}"
            found.skip(reason, len(values) - len(told))
        return told

    def _named(self, names: Names, found: Findings) -> list[tuple[str, str | None]]:
        """Our name and the estimator of each. Of several that mean one signal the first in
        `mapping` stands for it, and the others keep their own."""
        if (known := self._ours.get(names)) is not None:
            return known
        asked = {foreign: ours for ours, foreign in found.asked.columns.items()}
        meant = {n: Meaning(asked[n]) if n in asked else meaning(n) for n in names}
        taken: dict[str, str] = {}
        for name in sorted(names, key=lambda n: meant[n].rank if meant[n] else 0):  # type: ignore
            if (m := meant[name]) is not None:
                taken.setdefault(m.signal, name)
        result: list[tuple[str, str | None]] = []
        for name in names:
            m = meant[name]
            if m is not None and taken[m.signal] == name:
                result.append((m.signal, m.estimator))
                if m.estimator:
                    found.note(f"{name} stands for {m.signal}: {m.estimator}.")
                continue
            # A name of ours that means something else must not be taken for the signal.
            ours = f"log/{name}" if name in SIGNAL_NAMES else name
            result.append((ours, None))
            found.unmapped(name)
            if why := why_kept(name):
                found.note(f"{name} keeps its name: {why}.")
        if len(self._ours) >= MOST_SETS:
            self._ours.clear()
        self._ours[names] = result
        return result
