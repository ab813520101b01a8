"""Every metric of a run as a chart: its signals, imported scalars, evaluations, probes.

A metric has a key, which addresses name: a signal's own name, `action-map`, or `scalar/NAME`,
`probe/NAME`, `eval/METRIC/SOURCE`. Columns that are no signals are read only for the
charts that show them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from lldscope.core import palette
from lldscope.core.charts import DELTA_OF_ACTION, UNSMOOTHED, Chart, Line
from lldscope.core.schema import SIGNALS
from lldscope.figures.series import floats
from lldscope.figures.view import Subject
from lldscope.runs import Run

from ..figures.action_map import ACTION_MAP
from .snapshot import Snapshot

LONGEST = 300  # characters of a key that is offered
_SIGNALS = {c.name: c for c in SIGNALS.columns if c.name not in ("step", "time")}
_TITLES = {"kl": "KL to the reference", "clip_share": "Share of clipped tokens"}  # shown unasked
# Kind of a key → its table, what names a metric there, and what its values are.
_KINDS = {
    "scalar": ("scalars", "name", "imported value"),
    "probe": ("(FROM probes WHERE isfinite(value))", "probe",
              "probe, mean over its measurements"),
    "eval": ("evals", "metric || '/' || coalesce(data_source, '')",
             "evaluation, mean over the questions"),
}


def columns_of(run: Run) -> tuple[str, ...]:
    """The columns of a run other than signals."""
    columns = []
    for kind, (table, name, _) in _KINDS.items():
        names = run.sql(f"SELECT DISTINCT {name} FROM {table}").iloc[:, 0].dropna()
        columns += [f"{kind}/{name}" for name in names if name not in _SIGNALS]
    return tuple(sorted(columns))


def keys_of(columns: Sequence[str], table: pd.DataFrame) -> list[str]:
    """The keys of a run's metrics: the measured signals, then all other metrics."""
    signals = [name for name in _SIGNALS if has_values(table, name)]
    mapped = [ACTION_MAP.id] if has_values(table, DELTA_OF_ACTION.format(0)) else []
    keys = [*signals, *mapped, *columns]
    return [key for key in keys if len(key) <= LONGEST]


def has_values(table: pd.DataFrame, name: str) -> bool:
    """Whether a signal was measured at any step."""
    return bool(np.isfinite(floats(table, name)).any())


def chart_of(key: str, columns: Sequence[str] = ()) -> Chart | None:
    """The chart of a metric; None if there is no such key. `columns` are those of the runs."""
    if key in _SIGNALS:
        c = _SIGNALS[key]
        nonnegative = c.unit in ("share", "s", "count")
        unit, meaning = c.unit if c.unit != "-" else "", c.meaning.rstrip(".")
        return _chart(key, _TITLES.get(key, key), unit, meaning, nonnegative=nonnegative)
    if key == ACTION_MAP.id:
        return ACTION_MAP
    kind, _, name = key.partition("/")
    if kind in _KINDS and name and key in columns:
        return _chart(key, name, "", _KINDS[kind][2])
    return None


def _chart(key: str, title: str, unit: str, note: str, nonnegative: bool = False) -> Chart:
    line = Line(key, title, palette.BLUE, mean=key not in UNSMOOTHED)
    return Chart(key, title, unit, note, (line,), nonnegative=nonnegative)


def with_columns(snapshot: Snapshot, chart: Chart) -> Subject:
    """The run with the columns of this chart that its table lacks."""
    table = snapshot.subject.table
    for line in chart.lines:
        if line.column not in table and line.column.partition("/")[0] in _KINDS:
            table = _join(table, snapshot.run, line.column)
    return replace(snapshot.subject, table=table)


def _join(table: pd.DataFrame, run: Run, column: str) -> pd.DataFrame:
    """The table with one more column, and with rows for steps that the table lacks: an evaluation
    may come after the last step. Such a row has time and tokens of the step before it."""
    kind, _, metric = column.partition("/")
    source, name, _ = _KINDS[kind]
    query = f"SELECT step, avg(value) AS y FROM {source} WHERE {name} = ? GROUP BY step"
    rows: Any = run.sql(query, [metric]).rename(columns={"y": column})
    result = table.merge(rows, on="step", how="outer").sort_values("step", ignore_index=True)
    for clock in ("time", "tokens_seen"):
        result[clock] = result[clock].ffill()
    return result
