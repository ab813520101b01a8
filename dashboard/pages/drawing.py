"""The charts of a page: which are asked for, and their figures."""

from __future__ import annotations

from collections.abc import Sequence

from lldscope.core.charts import Chart
from lldscope.core.errors import LldscopeError

from ..data.histograms import NO_BINS, read_bins
from ..data.metrics import chart_of, needs_run, with_columns
from ..data.run_registry import RunRegistry
from ..data.snapshot import Snapshot
from ..figures.chart_figures import CHARTS, Figure, make_chart, make_overlay
from ..figures.histogram import Histogram, make_histogram, steps_in_view
from ..figures.series import XAxis, x_axis
from ..figures.view import Subject, View

MOST_ADDED = 24  # charts that an address may add
DEFAULTS = {chart.id: chart for chart in CHARTS}


def charts_of(
    keys: Sequence[str], snapshots: Sequence[Snapshot], compared: bool = False
) -> list[Chart]:
    """The charts of these keys; what no run has is passed over, and histograms where runs are
    compared."""
    columns = [column for snapshot in snapshots for column in snapshot.columns]
    found = (DEFAULTS.get(key) or chart_of(key, columns) for key in dict.fromkeys(keys))
    return [c for c in found if c is not None and not (compared and isinstance(c, Histogram))]


def draw(
    registry: RunRegistry,
    snapshots: Sequence[Snapshot],
    charts: Sequence[Chart],
    view: View,
    shown: set[str] | None = None,
    names: Sequence[str] = (),
) -> list[Figure]:
    """The charts of one run, or, where there is a choice of `shown` runs, of several."""
    of_charts = [[_subject(registry, s, chart) for s in snapshots] for chart in charts]
    if shown is not None:
        return [
            make_overlay(chart, subjects, shown, view, names)
            for chart, subjects in zip(charts, of_charts, strict=True)
        ]
    axis = x_axis([subjects[0].table for subjects in of_charts], view.by)
    return [
        _of_one(registry, chart, subjects[0], view, axis)
        for chart, subjects in zip(charts, of_charts, strict=True)
    ]


def _of_one(
    registry: RunRegistry, chart: Chart, subject: Subject, view: View, axis: XAxis
) -> Figure:
    if not isinstance(chart, Histogram):
        return make_chart(chart, subject, view, axis)
    steps = steps_in_view(subject, view, axis)
    try:
        bins = read_bins(registry.run(subject.name), chart, steps)
    except LldscopeError as error:  # it takes too long; the other charts are there
        figure = make_histogram(chart, NO_BINS, subject, view, axis)
        figure["layout"]["meta"]["remarks"] = str(error)
        return figure
    return make_histogram(chart, bins, subject, view, axis)


def _subject(registry: RunRegistry, snapshot: Snapshot, chart: Chart) -> Subject:
    subject = snapshot.subject
    run = registry.run(subject.name) if needs_run(subject, chart) else None
    return with_columns(subject, run, chart)
