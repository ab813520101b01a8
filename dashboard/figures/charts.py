"""The eight charts of a run page, chosen from `lldscope.core.charts`."""

from __future__ import annotations

from lldscope.core.charts import (
    ACTIONS_SHOWN,
    DELTA_OF_ACTION,
    EVIDENCE,
    Chart,
    Line,
    select_charts,
)

__all__ = ["ACTIONS_SHOWN", "CHARTS", "DELTA_OF_ACTION", "EVIDENCE", "Chart", "Line"]

CHARTS = select_charts(
    "likelihood", "delta", "reward", "entropy", "gradient", "by-action", "conduct", "shares"
)
