"""Which cause a fall of the likelihood is attributed to: LLD, or one that looks like it.

Precedence. A fall is attributed to another cause, and not to LLD, if that cause began no later than
the fall (plus LAG steps, which its trailing means need), no more than WITHIN steps before it, and
had not been resolved by then. While it is, no rule and no phase of LLD holds. The fall begins where
the decay test has reached FALL_SHARE of its threshold, or the mean Δ is FALLS standard errors from
0 (conditions.py); it ends after ENDS steps without either.
"""

from __future__ import annotations

import numpy as np

from . import detectors as d
from .conditions import delta_falls
from .evidence import Evidence, Flags
from .registry import CAUSES
from .rule import Rule, Span, episodes

LAG = 3  # steps by which a cause may be seen later than the fall it explains
WITHIN = 100  # steps: a cause that began longer ago does not explain the fall
FALL_SHARE = 0.25  # of the threshold of the decay test
ENDS = 10  # steps without a fall before one is over


def falls(e: Evidence) -> list[Span]:
    """Row spans in which the likelihood of correct responses falls; they begin before the alarm."""
    with np.errstate(invalid="ignore"):
        falling = e.decay.value >= FALL_SHARE * e.decay.threshold
    return episodes(falling | delta_falls(e), 1, e.cadence.rows(ENDS))


def cause_episodes(rule: Rule, e: Evidence, holds: Flags) -> list[tuple[int, int, int | None]]:
    """The rows at which a cause began to hold, fired, and was resolved; without one that is still
    pending at the last row."""
    on = d.consecutive(holds)
    return [
        (fires - int(on[fires]) + 1, fires, resolved) for fires, resolved in rule.episodes(e, holds)
    ]


def explained_elsewhere(e: Evidence) -> Flags:
    """Rows on which the fall of the likelihood, if any, is attributed to a cause other than LLD.

    A cause counts while it is pending, too: LLD waits for it.
    """
    out = np.zeros(len(e.step), dtype=bool)
    spans = falls(e)
    for rule in CAUSES if spans else ():
        holds = explaining(rule, e)
        pending = holds.copy()
        for begin, fires, resolved in cause_episodes(rule, e, holds):
            pending[fires:resolved] = False
            for start, end in spans:
                if explains(e, begin, start) and (resolved is None or start < resolved):
                    out[max(start, fires) : end] = True
        on = d.consecutive(holds)
        for row in np.flatnonzero(pending).tolist():
            ongoing = (a for a, b in spans if a <= row and (b is None or row < b))
            out[row] |= any(explains(e, row - int(on[row]) + 1, start) for start in ongoing)
    return out


def explains(e: Evidence, begin: int, fall: int) -> bool:
    return begin - e.cadence.rows(LAG) <= fall <= begin + e.cadence.rows(WITHIN)


def explaining(rule: Rule, e: Evidence) -> Flags:
    """Where a cause holds, and is strong enough to explain a fall of the likelihood."""
    measurement = rule.measure(e)
    return measurement.holds if measurement.explains is None else measurement.explains
