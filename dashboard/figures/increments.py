"""What a refresh sends: of each chart the points that are new, and the parts that have changed.

The browser keeps, for each chart, a note of what it was sent (`has`): lengths and checksums, no
data. A refresh builds the chart as it is now and compares. Bins of thinned lines are fixed
(`series.thin`), so that all but the last points of a line stay what they were.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
from dash import Patch

from lldscope.figures.chart_figures import Figure
from lldscope.figures.series import MOST_POINTS

_PARTS = ("shapes", "annotations", "xaxis", "yaxis", "yaxis2")  # of the layout

Note = dict[str, Any]


def has(figure: Figure) -> Note:
    """What a browser that has drawn this figure has."""
    lines = [
        [len(t["x"]), t["meta"], _sum(t, t["meta"]), _sum(t, None), _style(t)]
        for t in figure["data"]
    ]
    parts = {part: _crc(figure["layout"][part]) for part in _PARTS if part in figure["layout"]}
    return {"lines": lines, "parts": parts}


def patch(figure: Figure, note: Note | None = None) -> Patch | None:
    """From the figure that the browser has, by its note, to this one; None if they are the same.

    Without a note, or where lines came or went, all lines are sent.
    """
    now = has(figure)
    if note is not None and not _is_note(note):
        note = None  # whatever it is, it is not from here
    result = Patch()
    alike = note is not None and _styles(note) == _styles(now)
    if note is None or not alike:
        result["data"] = figure["data"]
    else:
        for i, (trace, before) in enumerate(zip(figure["data"], note["lines"], strict=True)):
            if before[3] != now["lines"][i][3]:
                _extend(result["data"][i], trace, before)
    for part, crc in now["parts"].items():
        if note is None or note["parts"].get(part) != crc:
            result["layout"][part] = figure["layout"][part]
    result["layout"]["meta"] = figure["layout"]["meta"]  # with other changes, never alone
    return None if note == now else result


def _is_note(note: Any) -> bool:
    """Whether this is what `has` gives."""
    if not isinstance(note, dict) or not isinstance(note.get("parts"), dict):
        return False
    lines = note.get("lines")
    return isinstance(lines, list) and all(
        isinstance(line, list) and len(line) == 5 and all(isinstance(n, int) for n in line)
        and 0 <= line[1] <= line[0] <= MOST_POINTS for line in lines
    )


def _extend(line: Patch, trace: Figure, before: list[Any]) -> None:
    """Replace what has not settled, and add what is new; or all, if what was settled has moved."""
    length, settled, crc = before[:3]
    same = settled <= len(trace["x"]) and _sum(trace, settled) == crc
    for axis in ("x", "y"):
        if not same or settled == 0:
            line[axis] = trace[axis]
            continue
        for i in reversed(range(settled, length)):
            del line[axis][i]
        line[axis].extend(trace[axis][settled:])


def _styles(note: Note) -> list[Any]:
    return [line[4] for line in note["lines"]]


def _style(trace: Figure) -> int:
    return _crc({k: v for k, v in trace.items() if k not in ("x", "y", "meta")})


def _sum(trace: Figure, end: int | None) -> int:
    points = np.array([trace["x"][:end], trace["y"][:end]], dtype=np.float64)
    return zlib.crc32(points.tobytes())


def _crc(value: Any) -> int:
    return zlib.crc32(json.dumps(value, separators=(",", ":")).encode())
