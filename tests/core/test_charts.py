"""The declaration of charts against the registry of signals, and who draws from it."""

from __future__ import annotations

from lldscope.core.charts import ACTIONS_SHOWN, DELTA_OF_ACTION, EVIDENCE
from lldscope.core.schema import SIGNALS
from lldscope.figures.chart_figures import CHARTS as ON_THE_DASHBOARD
from lldscope.report.charts import CHARTS as IN_REPORTS

COMPUTED = {EVIDENCE, *(DELTA_OF_ACTION.format(i) for i in range(ACTIONS_SHOWN))}


def test_every_line_is_a_signal_of_the_registry_or_computed_by_the_dashboard():
    for chart in (*ON_THE_DASHBOARD, *IN_REPORTS):
        assert {line.column for line in chart.lines} <= {*SIGNALS.names, *COMPUTED}, chart.id


def test_dashboard_and_report_draw_the_same_lines():
    by_id = {chart.id: chart for chart in ON_THE_DASHBOARD}
    shared = [chart for chart in IN_REPORTS if chart.id in by_id]
    assert len(shared) > 4
    assert all(chart is by_id[chart.id] for chart in shared)


def test_a_line_is_called_incorrect_and_never_wrong():
    labels = [line.label for chart in (*ON_THE_DASHBOARD, *IN_REPORTS) for line in chart.lines]
    assert "incorrect" in labels
    assert not any("wrong" in label for label in labels)
