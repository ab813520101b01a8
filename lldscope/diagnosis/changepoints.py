"""When decay and collapse began, in hindsight: change points of the likelihood, with intervals.

The live classifier dates a phase from the rows up to the step at which it recognized the phase;
this module dates it from the rows on both sides. It refines the boundaries of the live classifier
and adds none. The likelihood of correct responses is modelled as piecewise linear: its level has
kinks, and Δ, its change per step, has jumps. In a collapse the logarithm of the entropy has a kink
at the same step; the gradient norm is not used, because it explodes later (Fig. 2: the fall
accelerates at 120, the explosion is at 145). The breaks are those of the best least-squares fit, by
exhaustive search; an interval contains every break that the profile likelihood does not reject.
`docs/phases.md` says how often it contains the true step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .conditions import clip_gains
from .detectors import Series
from .evidence import Log
from .phases import LEAVE, Phase, PhaseSpan

STEPS_BEFORE = 100  # steps before a phase was recognised that are fitted
STEPS_AFTER = 10  # steps after a collapse was recognised; later its curves saturate or rebound
SEGMENT_STEPS = 5  # measured steps before the first break, between two, and after the last
CANDIDATES = 300  # breaks that are tried, at most; of more steps, every second, third … is tried
# Limits of the likelihood ratio of a break for 95 %. A jump: −2 ln(1 − √0.95) (Hansen, Econometrica
# 68, 2000, Theorem 2). A kink: the 97.5 % point of χ² with one degree of freedom, because simulated
# intervals with its 95 % point, 3.84, are too narrow: the correlation of the noise is estimated.
KINK, JUMP = 5.02, 7.35


@dataclass(frozen=True)
class Boundary:
    """The first step of a phase in hindsight, with its 95 % interval from `low` to `high`, and the
    step `live` at which the live classifier entered the phase."""

    phase: Phase
    step: int
    low: int
    high: int
    live: int
    method: str


@dataclass(frozen=True)
class Curve:
    """Measured values of a signal. A break changes the slope, or the value if the curve `jumps`, in
    the direction `turn` (1, −1, or 0 for either). Between breaks the curve is a line, or constant
    if it is `level`."""

    name: str
    steps: Series
    values: Series
    turn: int
    jumps: bool = False
    level: bool = False


def refine(log: Log, timeline: Sequence[tuple[PhaseSpan, bool]]) -> list[Boundary]:
    """The boundaries into decay and collapse in hindsight, in the order of the live ones, without
    those that have too few measured steps around them."""
    boundaries: list[Boundary] = []
    starts = {span.start_step: by_delta for span, by_delta in timeline}
    spans = [None, *(span for span, _ in timeline), None]

    def add(*of: PhaseSpan) -> None:
        boundaries.extend(_refine(log, of, starts[of[0].start_step]))

    for before, span, after in zip(spans, spans[1:], spans[2:], strict=False):
        if span and span.phase == "decay":
            if after and after.phase == "collapse":
                add(span, after)
            else:  # without the steps after its end that the classifier waited for
                over = LEAVE if after and after.phase == "recovered" else 0
                add(replace(span, end_step=span.end_step - over))
        elif span and span.phase == "collapse" and not (before and before.phase == "decay"):
            add(span)
    return boundaries


def _refine(log: Log, spans: Sequence[PhaseSpan], by_delta: bool) -> list[Boundary]:
    """Boundaries of a decay, of a collapse, or of a decay and the collapse it turned into."""
    collapses = spans[-1].phase == "collapse"
    first = spans[0].start_step
    start = max([first - STEPS_BEFORE, *(step for step in log.restarts if step <= first)])
    end = spans[-1].end_step
    if collapses:
        end = min(end, spans[-1].start_step + STEPS_AFTER)
    rows = log.between(start, end)
    key = (refine, *(span.start_step for span in spans), rows.stop)
    if key in log.fits:
        fitted: list[Boundary] = log.fits[key]
        return fitted
    likelihood = _likelihood(log, rows, by_delta)
    entropy = _log(log, "entropy", rows)
    others = [entropy] if collapses and len(entropy.steps) >= 3 * SEGMENT_STEPS else []
    breaks = fit(likelihood, others, len(spans), [span.start_step for span in spans])
    shape = "jumps" if by_delta else "kinks"
    method = f"{shape} of {' and '.join(c.name for c in (likelihood, *others))}"
    log.fits[key] = [
        Boundary(s.phase, *b, s.start_step, method)
        for s, b in zip(spans, breaks, strict=False)
        if s.phase is not None
    ]
    return log.fits[key]


def _likelihood(log: Log, rows: slice, by_delta: bool) -> Curve:
    """Δ, with gains and losses of single steps cut, or the level."""
    name = "delta_correct" if by_delta else "correct_logp"
    steps, values = log.step[rows], log.column(name)[rows]
    is_measured = np.isfinite(values)
    steps, values = steps[is_measured], values[is_measured]
    if by_delta:
        values = clip_gains(values, float(np.median(np.abs(values))) if len(values) else 1.0)
    return Curve(name, steps.astype(float), values, -1, jumps=by_delta, level=by_delta)


def _log(log: Log, name: str, rows: slice) -> Curve:
    steps, values = log.step[rows], log.column(name)[rows]
    is_positive = np.isfinite(values) & (values > 0)
    return Curve(name, steps[is_positive].astype(float), np.log(values[is_positive]), 1)


# -- the fit --------------------------------------------------------------------------------------


def fit(
    likelihood: Curve, others: Sequence[Curve], n_breaks: int, latest: Sequence[float] = ()
) -> list[tuple[int, int, int]]:
    """The best breaks with their intervals, (step, low, high) each; empty if there are too few
    measured steps. Only the first curve has all breaks, the others the last one. `latest` bounds
    each break by the step at which its consequence was visible.

    A curve adds n·ln RSS to the cost of a choice of breaks (−2 log of its profile likelihood with
    normal errors), after its AR(1) correlation around the best fit has been removed.
    """
    n = len(likelihood.steps)
    if n < (n_breaks + 1) * SEGMENT_STEPS:
        return []
    at = likelihood.steps[SEGMENT_STEPS : n - SEGMENT_STEPS + 1 : -(-n // CANDIDATES)]
    order = np.searchsorted(likelihood.steps, at)
    valid = (
        np.ones(len(at), dtype=bool) if n_breaks == 1 else order - order[:, None] >= SEGMENT_STEPS
    )
    for i, step in enumerate(latest):
        in_time = at <= step
        valid &= in_time if n_breaks == 1 or i == 1 else in_time[:, None]
    if not valid.any():
        return []
    curves = [(likelihood, n_breaks), *((curve, 1) for curve in others)]
    breaks = at[:0]
    for _ in range(2):
        correlation = [_correlation(c, breaks[-k:]) if len(breaks) else 0.0 for c, k in curves]
        costs = [_cost(c, at, k, r) for (c, k), r in zip(curves, correlation, strict=True)]
        total = np.where(valid, sum(costs), np.inf)  # other curves: the same for all first breaks
        best = np.unravel_index(int(np.argmin(total)), total.shape)
        breaks = at[list(best)]
    limit = JUMP if likelihood.jumps else KINK
    noise = _noise(likelihood, breaks)
    intervals = []
    for axis, step in enumerate(breaks):
        profile = total if n_breaks == 1 else total.min(axis=1 - axis)
        # If the true break is earlier, the steps in between have the noise of the later segment.
        more = np.where(at < step, noise[axis + 1], np.where(at > step, noise[axis], 1.0))
        inside = at[profile <= total.min() + limit * np.maximum(more, 1.0)]
        intervals.append((int(step), int(inside[0]), int(inside[-1])))
    return intervals


def fit_either(curve: Curve, latest: float) -> tuple[Curve, tuple[int, int, int]] | None:
    """The break of a curve up to the step `latest`, (step, low, high); None if there are too few
    measured steps. A line breaks by a kink (a decline) or a jump (a dead tool), whichever leaves
    smaller residuals."""
    shapes = [curve] if curve.level else [replace(curve, jumps=j) for j in (False, True)]
    fitted = [(shape, fit(shape, [], 1, [latest])) for shape in shapes]
    candidates = [(shape, breaks[0]) for shape, breaks in fitted if breaks]
    return min(candidates, key=lambda f: _square(f[0], f[1][0]), default=None)


def _square(curve: Curve, step: int) -> float:
    residuals = _residuals(curve, np.array([float(step)]))
    return float(residuals @ residuals)


def _cost(curve: Curve, at: Series, n_breaks: int, correlation: float) -> Series:
    """n·ln RSS for every break of `at`, shape (K,), or every pair, shape (K, K)."""
    y = _whiten(curve.values, correlation)
    base = _whiten(_base(curve), correlation)
    q = np.linalg.qr(base.T)[0]
    columns = _whiten(_columns(curve, at), correlation)
    columns -= (columns @ q) @ q.T
    y = y - q @ (q.T @ y)
    gram = columns @ columns.T
    diag = np.maximum(np.diag(gram), 1e-12)
    a = columns @ y
    square = max(float(y @ y), 1e-12)
    one = np.where(a * curve.turn >= 0, a**2 / diag, 0.0)  # sum of squares a single break explains
    explained = one
    if n_breaks == 2:
        det = np.outer(diag, diag) - gram**2
        first = a[:, None] * diag - a * gram  # × det: what the earlier break adds
        later = a * diag[:, None] - a[:, None] * gram
        both = (a[:, None] * first + a * later) / np.maximum(det, 1e-12 * np.outer(diag, diag))
        turns = (first * curve.turn >= 0) & ((later * curve.turn >= 0) | curve.jumps)
        explained = np.where(turns, both, np.maximum(one[:, None], one))
    return len(y) * np.log(np.maximum(square - explained, 1e-9 * square))


def _base(curve: Curve) -> Series:
    ones = np.ones_like(curve.steps)
    return ones[None] if curve.level else np.stack([ones, curve.steps - curve.steps[0]])


def _columns(curve: Curve, at: Series) -> Series:
    """The regressor of a break at each of `at`: a step, or a line that rises from there."""
    after = curve.steps - at[:, None]
    return (after >= 0).astype(float) if curve.jumps else np.maximum(after, 0.0)


def _whiten(rows: Series, correlation: float) -> Series:
    return rows[..., 1:] - correlation * rows[..., :-1]


def _correlation(curve: Curve, breaks: Series) -> float:
    """Correlation of neighbouring residuals of the fit with these breaks, clipped to 0 … 0.9."""
    r = _residuals(curve, breaks)
    square = float(r @ r)
    n, fitted = len(r), len(_base(curve)) + 2 * len(breaks)
    raw = float(r[1:] @ r[:-1]) / square if square > 0 else 0.0
    return float(np.clip((raw * n + fitted) / (n - fitted), 0.0, 0.9)) if n > 2 * fitted else 0.0


def _residuals(curve: Curve, breaks: Series) -> Series:
    design = np.concatenate([_base(curve), _columns(curve, breaks)]).T
    fitted: Series = design @ np.linalg.lstsq(design, curve.values, rcond=None)[0]
    return curve.values - fitted


def _noise(curve: Curve, breaks: Series) -> list[float]:
    """Variance of the residuals before the first break, between the two and after the last,
    relative to the variance of all. The noise of one side decides how far a break can be missed
    towards the other (Bai, Review of Economics and Statistics 79, 1997)."""
    square = _residuals(curve, breaks) ** 2
    parts = np.split(square, np.searchsorted(curve.steps, breaks))
    return [float(part.mean() / max(square.mean(), 1e-12)) for part in parts]
