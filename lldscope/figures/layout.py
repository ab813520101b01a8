"""The frame of a chart: axes, margins, fonts, hover. Colours are neutral; CSS themes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import palette
from ..core.charts import Chart
from ..diagnosis.detectors import EVIDENCE_CAP
from .marks import ROW_HEIGHT, ROWS
from .series import XAxis

STRIP = 0.24  # of the height of a chart, for the evidence below it
_FONT = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 11}


def chart_layout(
    chart: Chart, axis: XAxis, window: tuple[float, float], right: bool = True
) -> dict[str, Any]:
    """Axes, margins and hover of a chart. `right`: the chart shows one run, so it has a right-hand
    axis and room for the names of alarms. From `meta` assets/charts.js learns the axis, the steps,
    tokens or seconds per unit, and the range of all rows."""
    top = 18 + (ROWS * ROW_HEIGHT if right else 0)
    plain = {"showgrid": False, "zeroline": False, "linecolor": palette.NEUTRAL, "ticks": ""}
    layout: dict[str, Any] = {
        "font": _FONT | {"color": palette.NEUTRAL},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        # All charts have the same margins, so that their x axes line up.
        "margin": {"l": 58, "r": 52, "t": top, "b": 38},
        "autosize": True,
        "showlegend": False,
        "hovermode": "x unified",
        "dragmode": "zoom",
        "meta": {"x": axis.by, "unit": axis.divide, "whole": list(axis.extent)},
        "xaxis": plain
        | {
            "title": _title(axis.title, 6),
            "range": list(window),
            "autorange": False,
            "hoverformat": ".4~f" if axis.by != "step" else "d",
            "showspikes": True,
            "spikemode": "across",
            "spikethickness": -1,  # negative: without a halo
            "spikedash": "solid",
            "spikecolor": palette.NEUTRAL,
            "unifiedhovertitle": {"text": f"{axis.by if axis.by != 'time' else 't ='} %{{x}}"},
        },
        "yaxis": {
            "title": _title(chart.unit, 8),
            "type": "log" if chart.log else "linear",
            "fixedrange": True,
            "gridcolor": palette.NEUTRAL,
            "zeroline": chart.zero,
            "rangemode": "nonnegative" if chart.nonnegative else "normal",
            "zerolinecolor": palette.NEUTRAL,
            "zerolinewidth": 1,
            "nticks": 5,
            "exponentformat": "power" if chart.log else "SI",
            "automargin": False,
        },
    }
    if right and chart.right_unit is not None:
        layout["yaxis2"] = plain | {
            "title": _title(chart.right_unit, 6),
            "overlaying": "y",
            "side": "right",
            "fixedrange": True,
            "rangemode": "tozero",
            "tickmode": "auto",
            "nticks": 4,
        }
    return layout


def _title(text: str, standoff: int) -> dict[str, Any]:
    return {"text": text, "standoff": standoff, "font": {"size": _FONT["size"]}}


def evidence_axis(arl: float) -> dict[str, Any]:
    """The axis of the strip below the other lines: logarithmic, from 1 to slightly above the cap of
    the evidence."""
    top = np.log10(EVIDENCE_CAP * arl)
    ticks = [10**e for e in range(0, int(top) + 1, 4)]
    return {
        "type": "log",
        "overlaying": None,
        "side": "left",
        "domain": [0.0, STRIP],
        "range": [-0.1, float(top) + 0.3],
        "nticks": None,
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [f"{v:,}" for v in ticks],
    }
