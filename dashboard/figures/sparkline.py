"""A series as a picture the size of a word, for tables."""

from __future__ import annotations

from base64 import b64encode

import numpy as np

from .series import Numbers, thin

MOST = 80  # points; a hundred pictures are sent with the list


def make_sparkline(values: Numbers, color: str, width: int = 120, height: int = 28) -> str:
    """A small picture of a series as a data URI; empty if fewer than two values are known."""
    points = thin(np.arange(len(values), dtype=float), values, most=MOST)
    if len(points.y) < 2:
        return ""
    xs, ys = np.array(points.x), np.array(points.y)
    spread = float(np.ptp(ys)) or 1.0
    px = 2 + (width - 4) * (xs - xs[0]) / (float(xs[-1] - xs[0]) or 1.0)
    py = height - 3 - (height - 6) * (ys - ys.min()) / spread
    path = " ".join(f"{a:.0f},{b:.1f}" for a, b in zip(px, py, strict=True))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
        f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5" '
        f'stroke-linejoin="round"/><circle cx="{px[-1]:.1f}" cy="{py[-1]:.1f}" r="2" '
        f'fill="{color}"/></svg>'
    )
    return "data:image/svg+xml;base64," + b64encode(svg.encode()).decode()
