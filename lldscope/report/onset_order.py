"""What broke, in order: likelihood, entropy, gradient, reward, and when each began.

That a signal broke is decided by the live conditions (`diagnosis.conditions`): `seen` is the first
step at which its condition has held for two measured steps. When it began is estimated with
hindsight: the break of the best broken line through the steps around, with a 95 % interval
(`alarms.changepoints.fit_either`). The line begins where the signal was best, because otherwise the
end of its improvement could be the best break; and the break is not later than it was seen. What
was never seen has no onset, whatever a line would fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..diagnosis import conditions as c
from ..diagnosis import detectors as d
from ..diagnosis.assess import Assessment
from ..diagnosis.changepoints import (
    SEGMENT_STEPS,
    STEPS_AFTER,
    STEPS_BEFORE,
    Boundary,
    Curve,
    fit_either,
)
from ..diagnosis.evidence import SMOOTH, Evidence, Flags

SEEN = 2  # measured steps for which a condition holds before it counts as seen
LINKS: tuple[tuple[str, str, str, Callable[[Evidence], Flags], int], ...] = (
    # id, signal, the live condition, where it holds, sign of the break
    ("likelihood", "delta_correct", "correct responses lose likelihood", c.falling, -1),
    ("entropy", "entropy", "the entropy is 1.5 × usual",
     c.entropy_surges, 1),
    ("gradient", "grad_norm", "the gradient norm is 3 × usual",
     c.gradient_surges, 1),
    ("reward", "reward", "the reward has lost what counts as a crash", c.reward_crashed, -1),
)


@dataclass(frozen=True)
class Link:
    """One thing that can break in a run. Steps are None where it was not seen to: `seen` is the
    live step, `onset` with hindsight, from `low` to `high` at 95 %."""

    link: str
    signal: str
    measured: bool
    condition: str
    seen: int | None = None
    onset: int | None = None
    low: int | None = None
    high: int | None = None
    method: str | None = None

    @property
    def start(self) -> int | None:
        """Where it began, or at least was seen."""
        return self.seen if self.onset is None else self.onset


def onset_order(assessment: Assessment, boundaries: Sequence[Boundary]) -> list[Link]:
    """What broke first in the order of the onsets, then what did not."""
    e = assessment.evidence
    # What happened long before the fall has nothing to do with it.
    falls = [s.start_step for s in assessment.spans() if s.phase in ("decay", "collapse")]
    first = min([b.low for b in boundaries] + falls, default=STEPS_BEFORE) - STEPS_BEFORE
    links = [_link(e, *link, first, boundaries) for link in LINKS]
    return sorted(links, key=lambda link: float("inf") if link.start is None else link.start)


def _link(
    e: Evidence, name: str, signal: str, condition: str, test: Callable[[Evidence], Flags],
    turn: int, first: int, boundaries: Sequence[Boundary],
) -> Link:
    if name == "likelihood" and not np.isfinite(e.column(signal)).any():
        signal = "correct_logp"
    finite = np.isfinite(e.column(signal))
    link = Link(name, signal, bool(finite.any()), condition)
    with np.errstate(invalid="ignore"):
        holds = test(e) & finite & (e.step >= first)
    rows = np.flatnonzero(d.consecutive(holds) >= e.cadence.rows(SEEN))
    if not len(rows):
        return link
    live = int(e.step[rows[0]])
    b = next((b for b in boundaries if b.phase == "decay" and name == "likelihood"), None)
    if b is not None:
        # one onset and one step at which it was recognised, as for the phase
        return replace(link, seen=b.live, onset=b.step, low=b.low, high=b.high, method=b.method)
    return _broken_line(replace(link, seen=live), e, turn, live)


def _broken_line(link: Link, e: Evidence, turn: int, live: int) -> Link:
    """With the step at which the curve bent; positive signals are fitted by their logarithm."""
    values = e.column(link.signal)
    log = link.signal in ("entropy", "grad_norm")
    start = _best_before(e, values, turn, live)
    rows = (e.step >= start) & (e.step <= live + STEPS_AFTER) & np.isfinite(values)
    if log:
        rows &= values > 0
    if np.count_nonzero(rows) < 3 * SEGMENT_STEPS:
        return link
    y = np.log(values[rows]) if log else values[rows]
    by_delta = link.signal == "delta_correct"
    x = e.step[rows].astype(float)
    breaks = fit_either(Curve(link.signal, x, y, turn, jumps=by_delta, level=by_delta), live)
    if breaks is None:
        return link
    curve, (step, low, high) = breaks
    shape = "jump" if curve.jumps else "kink"
    method = f"{shape} of {'the logarithm of ' if log else ''}{link.signal}"
    return replace(link, onset=step, low=low, high=high, method=method)


def _best_before(e: Evidence, values: d.Series, turn: int, live: int) -> int:
    """The first step of the best trailing mean of the STEPS_BEFORE steps before `live`: the highest
    of a signal that fell, the lowest of one that rose."""
    window = e.cadence.rows(SMOOTH)
    mean = d.trailing_mean(values, window, window)
    rows = np.flatnonzero((e.step >= live - STEPS_BEFORE) & (e.step < live) & np.isfinite(mean))
    if not len(rows):
        return live - STEPS_BEFORE
    best = int(rows[np.argmin(turn * mean[rows])])
    return int(max(e.step[best - window + 1], live - STEPS_BEFORE))
