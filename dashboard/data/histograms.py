"""Histograms by step, counted by DuckDB: a bounded number of bins, of a bounded number of rows."""

from __future__ import annotations

import pandas as pd

from lldscope.core.schema import RESPONSES
from lldscope.explore.responses import SECONDS
from lldscope.runs import Run

from ..figures.histogram import Bins, Histogram

ACROSS, UP = 100, 24  # bins at most
MOST_ROWS = 1_000_000  # counted; of more, whole steps at equal distances
_TAILS = 0.005  # of the values, at each end, that the outermost bins hold beside their own

_NOTHING = pd.DataFrame(columns=["first", "last", "low", "high", "median", "n"], dtype=float)
NO_BINS = Bins(_NOTHING, _NOTHING)
_UNITS = {c.name: c.unit for c in RESPONSES.columns}


def _histogram(
    name: str, title: str, unit: str, note: str, source: str, value: str, whole: bool = False
) -> Histogram:
    of = f"rows by value: {note}; the outermost hold the lowest and highest 0.5 % too"
    return Histogram(
        f"histogram/{name}", f"{title}, distribution", unit, of, (), source=source, value=value,
        whole=whole,
    )


HISTOGRAMS = {
    chart.id: chart
    for chart in (
        _histogram(
            "reward", "Reward", _UNITS["reward"], "rollouts of a step", "responses", "reward"
        ),
        _histogram("advantage", "Advantage", "", "rollouts of a step", "responses", "advantage"),
        _histogram(
            "length", "Length", _UNITS["n_tokens"], "rollouts of a step", "responses", "n_tokens",
            whole=True,
        ),
        _histogram(
            "delta", "Δ of correct responses", "nat", "correct responses that were scored again",
            "(FROM response_likelihood WHERE correct)", "delta",
        ),
        _histogram(
            "ratio", "Importance ratio", "inner/old",
            "actions, geometric mean over their tokens", "actions",
            "exp((logp_inner_sum - logp_old_sum) / nullif(n_tokens, 0))",
        ),
    )
}

# What must be there, found without reading a view through.
_NEEDS = {
    "reward": ("responses", "reward IS NOT NULL"),
    "advantage": ("responses", "advantage IS NOT NULL"),
    "length": ("responses", "n_tokens IS NOT NULL"),
    "delta": ("actions", "logp_old_sum IS NOT NULL AND logp_post_sum IS NOT NULL"),
    "ratio": ("actions", "logp_old_sum IS NOT NULL AND logp_inner_sum IS NOT NULL"),
}

_COUNT = """
SELECT count(*) AS n, coalesce(min(step), 0) AS begin FROM {source}
WHERE step BETWEEN {low} AND {high}
"""
_VALUES = """
SELECT step, ({value})::DOUBLE AS v FROM {source}
WHERE isfinite(({value})::DOUBLE) AND step BETWEEN {low} AND {high}
    AND (step - {begin}) % {every} = 0
"""
_ENDS = """
SELECT min(step) AS low, max(step) AS high, quantile_cont(v, {tails}) AS a,
    quantile_cont(v, 1 - {tails}) AS b
FROM ({values})
"""
_CELLS = """
SELECT (step - {low}) // {width} AS bin, min(step) AS first, max(step) AS last,
    least(greatest(floor((v - {a}) / {height}), 0), {most}) AS up, count(*) AS n
FROM ({values}) GROUP BY bin, up ORDER BY bin, up
"""
_COLUMNS = """
SELECT (step - {low}) // {width} AS bin, min(step) AS first, max(step) AS last,
    median(v) AS median, count(*) AS n
FROM ({values}) GROUP BY bin ORDER BY bin
"""


def histograms_of(run: Run, tables: tuple[str, ...]) -> list[str]:
    """The histograms that this run has rows for."""
    names = []
    for name, (table, holds) in _NEEDS.items():
        if table in tables and len(run.sql(f"SELECT 1 FROM {table} WHERE {holds} LIMIT 1")):
            names.append(f"histogram/{name}")
    return names


def read_bins(run: Run, chart: Histogram, steps: tuple[int, int] | None = None) -> Bins:
    """The bins of these steps, or of all. Raises UsageError where it takes too long."""
    low, high = steps or (0, 2**31 - 1)
    query = _COUNT.format(source=chart.source, low=low, high=high)
    n, begin = (int(v) for v in run.sql(query, None, SECONDS).iloc[0])
    every = -(-n // MOST_ROWS) or 1
    about = {"value": chart.value, "source": chart.source, "begin": begin, "every": every}
    values = _VALUES.format(low=low, high=high, **about)
    ends = run.sql(_ENDS.format(tails=_TAILS, values=values), None, SECONDS).iloc[0]
    if ends.isna().any():
        return NO_BINS
    first, last = int(ends["low"]), int(ends["high"])
    a, b = float(ends["a"]), float(ends["b"])
    height = (b - a) / UP
    if chart.whole:
        a, height = a - 0.5, max(1.0, -(-(b - a + 1) // UP))
    elif height <= 1e-9 * max(abs(a), abs(b)):
        height = 0.1 * abs(a) or 1.0
        a -= height / 2
    most = UP - 1 if not chart.whole else max(0, int((b + 0.5 - a) / height - 1e-9))
    bounds = {"low": first, "width": -(-(last - first + 1) // ACROSS), "values": values}
    cells = run.sql(_CELLS.format(a=a, height=height, most=most, **bounds), None, SECONDS)
    cells["low"] = a + cells["up"] * height
    cells["high"] = cells["low"] + height
    # all bins of a range of steps are as wide as the range
    columns = run.sql(_COLUMNS.format(**bounds), None, SECONDS)
    spans = columns.set_index("bin")[["first", "last"]]
    cells[["first", "last"]] = spans.loc[cells["bin"]].to_numpy()
    return Bins(cells, columns, every)
