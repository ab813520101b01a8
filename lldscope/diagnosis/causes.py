"""Which cause a fall of the likelihood is attributed to: LLD, or one that looks like it.

Precedence. A fall is attributed to another cause, and not to LLD, if that cause began no later than
the fall (plus LAG steps, which its trailing means need), no more than WITHIN steps before it, and
had not been resolved by then. A cause inside the policy, such as responses that grow until a limit
cuts them, must have begun LEAD steps before the fall is seen: otherwise it is a consequence. While
a fall is attributed to another cause, no rule and no phase of LLD holds. The fall begins where
the decay test has reached FALL_SHARE of its threshold, or the mean Δ is FALLS standard errors from
0 (conditions.py); it ends after ENDS steps without either.
"""

from __future__ import annotations

import numpy as np

from . import detectors as d
from .conditions import delta_falls
from .evidence import Evidence, Flags, once
from .registry import CAUSES
from .rule import Episode, Rule, episodes, stretches

LAG = 3  # steps by which a cause may be seen later than the fall it explains
LEAD = 10  # steps that the decay test may take to see a fall
WITHIN = 100  # steps: a cause that began longer ago does not explain the fall
FALL_SHARE = 0.25  # of the threshold of the decay test
ENDS = 10  # steps without a fall before one is over


@once
def falls(e: Evidence) -> list[Episode]:
    """When the likelihood of correct responses falls; this begins before the alarm."""
    falling = e.decay.value >= FALL_SHARE * e.decay.threshold
    return stretches(e, falling | delta_falls(e), ENDS)


@once
def explained_elsewhere(e: Evidence) -> Flags:
    """Rows on which the fall of the likelihood, if any, is attributed to a cause other than LLD.

    A cause counts while it is pending, too: LLD waits for it.
    """
    out = np.zeros(len(e.step), dtype=bool)
    ongoing = [fall for fall in falls(e) if fall.lasts(e.start)]
    for rule in CAUSES:
        holds, causes = explaining(e, rule), explanations(e, rule)
        on, pending = d.consecutive(holds), holds.copy()
        for cause in causes if ongoing else ():
            pending[_rows(e, cause.fired, cause.end)] = False
            for fall in ongoing:
                if explains(e, rule, cause.begin, fall.fired) and cause.lasts(fall.fired):
                    out[_rows(e, max(fall.fired, cause.fired), fall.end)] = True
        for row in np.flatnonzero(pending).tolist() if ongoing else ():
            begin = e.start + row - int(on[row]) + 1
            now = (fall.fired for fall in ongoing if fall.at(e.start + row))
            out[row] |= any(explains(e, rule, begin, fall) for fall in now)
    return out


def _rows(e: Evidence, start: int, end: int | None) -> slice:
    """Rows of the run as those of the block."""
    return slice(max(start - e.start, 0), None if end is None else max(end - e.start, 0))


def lead(e: Evidence, rule: Rule) -> int:
    """The rows by which a cause must begin before a fall to explain it; negative where it may be
    seen later than the fall."""
    return e.cadence.rows(LEAD) if rule.inside else -e.cadence.rows(LAG)


def explains(e: Evidence, rule: Rule, begin: int, fall: int) -> bool:
    return begin + lead(e, rule) <= fall <= begin + e.cadence.rows(WITHIN)


def explaining(e: Evidence, rule: Rule) -> Flags:
    """Where a cause holds, and is strong enough to explain a fall of the likelihood."""
    measurement = rule.measure(e)
    return measurement.holds if measurement.explains is None else measurement.explains


@once
def explanations(e: Evidence, rule: Rule) -> list[Episode]:
    """The episodes of a cause that is strong enough; without one that is still pending."""
    holds = explaining(e, rule)
    return episodes(e, holds, rule.firing(e, holds))
