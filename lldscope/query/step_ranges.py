"""Splits a long run into ranges of steps, so that memory does not grow with its length."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from ..storage.part import Part

RANGE_ROWS = 500_000  # rows of all tables in a range, about
MAX_RANGES = 500  # whatever a manifest claims; enough for 250 million rows


def step_ranges(
    parts: Iterable[Part], first_step: int, rows: int = RANGE_ROWS
) -> list[tuple[int, int]]:
    """Consecutive ranges (first, last step), from `first_step` to the last step of the parts.

    Each holds about `rows` rows, or a single step, if a part's rows are spread evenly over its
    steps. Empty if no part holds such steps.
    """
    dirty = [p for p in parts if p.last_step >= first_step]
    if not dirty:
        return []
    end = max(p.last_step for p in dirty) + 1
    # Rows up to a step: straight between the edges of parts, and each part adds to the slope.
    starts = np.array([p.first_step for p in dirty], dtype=np.float64)
    ends = np.array([p.last_step + 1 for p in dirty], dtype=np.float64)
    slope = np.array([p.rows for p in dirty]) / (ends - starts)
    at = np.concatenate([starts, ends])
    order = np.argsort(at, kind="stable")
    at, turn = at[order], np.concatenate([slope, -slope])[order]
    until = np.concatenate([[0.0], np.cumsum(np.cumsum(turn)[:-1] * np.diff(at))])
    begun, whole = np.interp([first_step, end], at, until)
    rows = max(rows, int((whole - begun) / MAX_RANGES))
    cuts = np.interp(np.arange(begun + rows, whole, rows), until, at)
    edges = sorted({first_step, *(int(c) for c in np.ceil(cuts) if first_step < c < end), end})
    return [(a, b - 1) for a, b in pairwise(edges)]
