"""What a notebook shows of a run, without Plotly: the first screen of its report, or its charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.charts import Chart
from ..core.errors import UsageError
from ..figures.chart_figures import CHARTS, is_measured, make_chart
from ..figures.svg import draw
from ..figures.view import View, subject_of
from ..monitor.health import check
from ..run import Run
from .analysis import post_mortem
from .blocks import Charts, Document, Section
from .document import document
from .html import fragment


@dataclass(frozen=True)
class Sheet:
    """Charts as HTML, which a notebook draws."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


def card(run: Run) -> str:
    """The first screen of the run's report."""
    return fragment(document(post_mortem(run)))


def plot(run: Run, signals: Sequence[str] | None = None) -> Sheet:
    """Charts of the dashboard that were measured. `signals` names them by id or by a signal they
    show; by default all. Raises UsageError for a name that no chart knows."""
    charts = CHARTS if signals is None else tuple(dict.fromkeys(map(_chart, signals)))
    subject = subject_of(run.name, run, check(run))
    figures = [(chart, make_chart(chart, subject, View())) for chart in charts]
    drawings = [draw(chart, figure) for chart, figure in figures if is_measured(figure)]
    content = Document(subject.called, [], [Section("", [Charts(drawings)])], "")
    return Sheet(fragment(content))


def _chart(name: str) -> Chart:
    for chart in CHARTS:
        columns = [line.column for line in chart.lines]
        if name == chart.id or name in columns or f"{name}_trim" in columns:
            return chart
    ids = ", ".join(chart.id for chart in CHARTS)
    raise UsageError(f"No chart shows {name}. There are: {ids}, and the signals they draw.")
