"""The cause of a fall of the likelihood: LLD, or a look-alike.

A cause other than LLD explains a fall if it began at most WITHIN steps before the fall and at most
LAG steps after it (trailing means lag), and was not resolved before it. A cause inside the policy,
such as responses that grow until a limit cuts them, must begin LEAD steps before the fall is seen;
otherwise it is a consequence. While a fall is explained this way, no LLD rule holds and no LLD
phase is entered.

The fall begins where the decay test has reached FALL_SHARE of its threshold, or where the mean Δ is
FALLS standard errors below 0 (conditions.py); it ends after ENDS steps without either.
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
    """Rows on which the likelihood of correct responses falls; earlier than the alarm."""
    falling = e.decay.value >= FALL_SHARE * e.decay.threshold
    return stretches(e, falling | delta_falls(e), ENDS)


@once
def explained_elsewhere(e: Evidence) -> Flags:
    """Rows on which a cause other than LLD explains the fall of the likelihood. A pending cause
    counts, too: the alarm of LLD waits until the cause fires or not."""
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
    """Rows of the run as rows of the block."""
    return slice(max(start - e.start, 0), None if end is None else max(end - e.start, 0))


def lead(e: Evidence, rule: Rule) -> int:
    """The rows by which a cause must begin before a fall to explain it; negative where it may be
    seen later than the fall."""
    return e.cadence.rows(LEAD) if rule.inside else -e.cadence.rows(LAG)


def explains(e: Evidence, rule: Rule, begin: int, fall: int) -> bool:
    return begin + lead(e, rule) <= fall <= begin + e.cadence.rows(WITHIN)


def explaining(e: Evidence, rule: Rule) -> Flags:
    """Rows on which a cause holds and is strong enough to explain a fall of the likelihood."""
    measurement = rule.measure(e)
    return measurement.holds if measurement.explains is None else measurement.explains


@once
def explanations(e: Evidence, rule: Rule) -> list[Episode]:
    """The episodes in which a cause fired and was strong enough."""
    holds = explaining(e, rule)
    return episodes(e, holds, rule.firing(e, holds))
