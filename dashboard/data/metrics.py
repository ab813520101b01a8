"""Every metric of a run as a chart: its signals, imported scalars, evaluations, probes.

A metric has a key, which addresses name: a signal's own name, `step_seconds`, or `scalar/NAME`,
`probe/NAME`, `eval/METRIC`, `histogram/NAME`. Its columns are the key itself, or, of an evaluation,
one for each data source. Columns that are no signals are read only for the charts that show them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from lldscope.core import palette
from lldscope.core.charts import UNSMOOTHED, Chart, Line
from lldscope.core.schema import SIGNALS
from lldscope.figures.series import floats
from lldscope.figures.view import Subject, held_out_metric
from lldscope.runs import Run

from .histograms import HISTOGRAMS, histograms_of
from .snapshot import Snapshot

STEP_SECONDS = "step_seconds"
LONGEST = 300  # characters of a key that is offered
MOST_SOURCES = 8  # data sources drawn of an evaluation
MOST_OF_MACHINE = 24  # metrics about the machine
# Names of signals and scalars about the machine.
_ABOUT_THE_MACHINE = re.compile(
    r"^seconds_|gpu|cuda|memory|(^|[_/.])mem([_/.]|$)|mfu|tokens?_per|per_sec|throughput|"
    r"/time|time/|timing|util|power|temperature|cpu|disk",
    re.IGNORECASE,
)
_SIGNALS = {c.name: c for c in SIGNALS.columns if c.name not in ("step", "time")}
_KINDS = {
    "scalar": "SELECT DISTINCT name FROM scalars",
    "probe": "SELECT DISTINCT probe FROM probe_signals",
    "eval": "SELECT DISTINCT metric || '/' || coalesce(data_source, '') FROM evals",
}
_ROWS = {
    "scalar": "SELECT step, avg(value) AS y FROM scalars WHERE name = ? GROUP BY step",
    "probe": "SELECT step, avg(value) AS y FROM probe_signals WHERE probe = ? GROUP BY step",
    "eval": "SELECT step, avg(value) AS y FROM evals "
    "WHERE metric || '/' || coalesce(data_source, '') = ? GROUP BY step",
}


def columns_of(run: Run, tables: Sequence[str]) -> tuple[str, ...]:
    """The columns of a run that are no signals."""
    needs = {"scalar": "scalars", "probe": "probes", "eval": "evals"}
    columns = []
    for kind, query in _KINDS.items():
        if needs[kind] in tables:
            names = run.sql(query).iloc[:, 0].dropna()
            columns += [f"{kind}/{name}" for name in names if name not in _SIGNALS]
    return tuple(sorted(columns)) + tuple(histograms_of(run, tuple(tables)))


def keys_of(columns: Sequence[str], table: pd.DataFrame) -> list[str]:
    """The metrics of a run: those signals that were measured, and what else it has."""
    signals = [name for name in _SIGNALS if has_values(table, name)]
    timed = [STEP_SECONDS] if np.isfinite(floats(table, "time")).sum() > 1 else []
    evaluated = dict.fromkeys(_evaluation(c) for c in columns if c.startswith("eval/"))
    others = [c for c in columns if not c.startswith("eval/")]
    keys = [*signals, *timed, *evaluated, *others]
    return [key for key in keys if len(key) <= LONGEST]


def held_out(columns: Sequence[str]) -> list[str]:
    """The evaluation that a page shows without being asked; empty if the run has none."""
    keys = dict.fromkeys(_evaluation(c) for c in columns if c.startswith("eval/"))
    metric = held_out_metric([key.removeprefix("eval/") for key in keys])
    return [] if metric is None else [f"eval/{metric}"]


def has_values(table: pd.DataFrame, name: str) -> bool:
    """Whether a signal was measured at any step."""
    return bool(np.isfinite(floats(table, name)).any())


def machine_keys(snapshot: Snapshot) -> list[str]:
    """The metrics about the machine, MOST_OF_MACHINE at most: time of a step, GPUs, memory."""
    keys = keys_of(snapshot.columns, snapshot.subject.table)
    about = [key for key in keys if key == STEP_SECONDS or _ABOUT_THE_MACHINE.search(key)]
    return about[:MOST_OF_MACHINE]


def _evaluation(column: str) -> str:
    return "/".join(column.split("/")[:2])


def chart_of(key: str, columns: Sequence[str] = ()) -> Chart | None:
    """The chart of a metric; None if there is no such key. `columns` are those of the runs."""
    if key in _SIGNALS:
        c = _SIGNALS[key]
        nonnegative = c.unit in ("share", "s", "count")
        unit, meaning = c.unit if c.unit != "-" else "", c.meaning.rstrip(".")
        return _chart(key, key, unit, meaning, nonnegative=nonnegative)
    if key == STEP_SECONDS:
        return _chart(key, "Seconds per step", "s", "from one step's end to the next")
    kind, _, name = key.partition("/")
    if key in HISTOGRAMS and key in columns:
        return HISTOGRAMS[key]
    if kind == "eval" and name:
        sources = [c for c in dict.fromkeys(columns) if _evaluation(c) == key][:MOST_SOURCES]
        if not sources:
            return None
        colors, dashes = palette.RUN_COLORS, palette.RUN_DASHES
        lines = tuple(
            Line(
                column,
                column.removeprefix(f"{key}/") or name,
                colors[i % len(colors)],
                dashes[i % len(dashes)],
                mean=False,
                markers=True,
            )
            for i, column in enumerate(sources)
        )
        words = "evaluation, mean over the questions"
        first = lines[0].label
        of_first = "" if first == name else f"{words} of {first}"
        return Chart(key, name, "", words, lines, compared=of_first)
    if kind in _KINDS and name and key in columns:
        what = "imported value" if kind == "scalar" else "probe, mean over its measurements"
        return _chart(key, name, "", what)
    return None


def _chart(key: str, title: str, unit: str, note: str, nonnegative: bool = False) -> Chart:
    line = Line(key, title, palette.BLUE, mean=key not in UNSMOOTHED)
    return Chart(key, title, unit, note, (line,), nonnegative=nonnegative)


def with_columns(subject: Subject, run: Run | None, chart: Chart) -> Subject:
    """The run as this chart sees it: with the columns that its table lacks. `run` is asked for
    them; None where none are lacking."""
    table = subject.table
    lacking = [line.column for line in chart.lines if line.column not in table]
    for column in lacking:
        if column == STEP_SECONDS:
            seconds = np.diff(floats(table, "time"), prepend=np.nan)
            table = table.assign(**{column: np.where(seconds >= 0, seconds, np.nan)})
        elif run is not None and column.partition("/")[0] in _ROWS:
            table = _join(table, run, column)
    return subject if table is subject.table else replace(subject, table=table)


def needs_run(subject: Subject, chart: Chart) -> bool:
    """Whether the chart shows columns that must be read from the run."""
    return any(
        line.column not in subject.table and line.column.partition("/")[0] in _ROWS
        for line in chart.lines
    )


def _join(table: pd.DataFrame, run: Run, column: str) -> pd.DataFrame:
    """The table with a column more; and with rows more, for steps that it lacks: an evaluation may
    come after the last step. Their time and tokens are those of the step before."""
    kind, _, name = column.partition("/")
    rows: Any = run.sql(_ROWS[kind], [name]).rename(columns={"y": column})
    result = table.merge(rows, on="step", how="outer").sort_values("step", ignore_index=True)
    for clock in ("time", "tokens_seen"):
        result[clock] = result[clock].ffill()
    return result
