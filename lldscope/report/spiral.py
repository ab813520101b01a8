"""The links of the death spiral in order: likelihood, entropy, gradient, reward, and when each
began.

That a link was there is said by the live conditions (`signals.phases`): it is `seen` at the first
step at which its condition has held for two measured steps. When it began is said with hindsight:
the break of the best broken line through the steps around, with a 95 % interval
(`alarms.changepoints.fit`). A link that was never seen has no onset, whatever a line would fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..alarms.assess import Assessment
from ..alarms.changepoints import SEGMENT_STEPS, STEPS_AFTER, STEPS_BEFORE, Boundary, Curve, fit
from ..signals import detectors as d
from ..signals import phases as p
from ..signals.evidence import Evidence, Flags

SEEN = 2  # measured steps for which a condition holds before its link counts as seen
LINKS = (
    # id, signal, the live condition in words, sense of the break
    ("likelihood", "delta_correct", "correct responses lose likelihood", -1),
    ("entropy", "entropy", "the entropy is 1.5 × its trailing median and above its lowest", 1),
    ("gradient", "grad_norm", "the gradient norm is 3 × its trailing median", 1),
    ("reward", "reward", "the reward has lost what counts as a crash", -1),
)


def onset_order(assessment: Assessment, boundaries: Sequence[Boundary]) -> list[dict[str, Any]]:
    """A dictionary per link: id, signal, measured, seen (live step), onset, low, high, method.

    Steps are None where nothing was seen. Seen links come first, in the order of their onsets.
    """
    e = assessment.evidence
    start = _start(assessment, boundaries)
    found = [_link(e, *link, start, boundaries) for link in LINKS]
    return sorted(found, key=lambda link: (link["seen"] is None, _order(link)))


def _order(link: dict[str, Any]) -> float:
    first = link["onset"] if link["onset"] is not None else link["seen"]
    return float("inf") if first is None else float(first)


def _start(assessment: Assessment, boundaries: Sequence[Boundary]) -> int:
    """From which step on links are looked for: what breaks out long before a fall is no link."""
    falls = [s.start_step for s in assessment.spans() if s.phase in ("decay", "collapse")]
    begins = [b.low for b in boundaries] + falls
    return min(begins, default=STEPS_BEFORE) - STEPS_BEFORE


def _link(
    e: Evidence, name: str, signal: str, words: str, turn: int, start: int,
    boundaries: Sequence[Boundary],
) -> dict[str, Any]:  # fmt: skip
    if name == "likelihood" and not np.isfinite(e.column(signal)).any():
        signal = "correct_logp"
    values = e.column(signal)
    link: dict[str, Any] = {
        "link": name,
        "signal": signal,
        "measured": bool(np.isfinite(values).any()),
        "condition": words,
        "seen": None,
        "onset": None,
        "low": None,
        "high": None,
        "method": None,
    }
    holds = _condition(name, e) & np.isfinite(values) & (e.step >= start)
    rows = np.flatnonzero(d.consecutive(holds) >= SEEN)
    if not len(rows):
        return link
    link["seen"] = int(e.step[rows[0]])
    known = [b for b in boundaries if b.phase == "decay"] if name == "likelihood" else []
    if known:
        b = known[0]
        return link | {"onset": b.step, "low": b.low, "high": b.high, "method": b.method}
    return link | _broken_line(e, signal, turn, link["seen"])


def _condition(name: str, e: Evidence) -> Flags:
    with np.errstate(invalid="ignore"):
        return {
            "likelihood": p.falling,
            "entropy": p.entropy_surges,
            "gradient": p.gradient_surges,
            "reward": p.reward_crashed,
        }[name](e)


def _broken_line(e: Evidence, signal: str, turn: int, seen: int) -> dict[str, Any]:
    """Where the curve bent before its link was seen; positive signals by their logarithm."""
    values = e.column(signal)
    log = signal in ("entropy", "grad_norm")
    rows = (e.step >= seen - STEPS_BEFORE) & (e.step <= seen + STEPS_AFTER) & np.isfinite(values)
    if log:
        rows &= values > 0
    if np.count_nonzero(rows) < 3 * SEGMENT_STEPS:
        return {}
    y = np.log(values[rows]) if log else values[rows]
    jumps = signal == "delta_correct"
    breaks = fit(Curve(signal, e.step[rows].astype(float), y, turn, jumps), [], 1)
    if not breaks:
        return {}
    step, low, high = breaks[0]
    shape = "jump" if jumps else "kink"
    method = f"{shape} of {'the logarithm of ' if log else ''}{signal}"
    return {"onset": step, "low": low, "high": high, "method": method}
