"""Components of the reward: one falls while the reward does not, because others make up for it."""

from __future__ import annotations

import re

import numpy as np

from ...core.schema import COMPONENT
from .. import detectors as d
from .. import outcome as o
from ..evidence import SMOOTH, Evidence, once
from ..rule import Measurement, Rule, Severity
from .measures import percent

# Names of components that say whether the answer is right.
_RIGHT = re.compile(r"acc|correct|answer|match|solve|success|pass|result|outcome|verif|em\b", re.I)


@once
def replaced(e: Evidence) -> Measurement:
    """A component is under DECLINED of its best beyond noise, and the reward is not."""
    names = [name for name in e.signals if name.startswith(COMPONENT)]
    n = len(e.step)
    holds, share = np.zeros(n, dtype=bool), np.full(n, np.nan)
    worst, rank = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    steady = ~np.isnan(o.outcome(e).level) & ~o.outcome(e).fallen
    says_right = [bool(_RIGHT.search(name)) for name in names]
    outcomes = [o.outcome_of(e, e.column(name)) for name in names] if len(names) > 1 else []
    for i, one in enumerate(outcomes):
        fallen = one.under(o.DECLINED) & steady
        is_grave = says_right[i] or not any(says_right)
        rank[fallen & is_grave] = Severity.WARNING.rank
        first = fallen & ~(holds & (share <= one.share))  # of several the one that lost most
        share[first], worst[first] = one.share[first], i
        holds |= fallen

    def message(row: int) -> str:
        one = outcomes[worst[row]]
        gains = {
            names[i].removeprefix(COMPONENT): x.level[row] - x.level[~np.isnan(x.level)][0]
            for i, x in enumerate(outcomes) if i != worst[row] and not np.isnan(x.level[row])
        }
        most = max(gains, key=lambda name: gains[name], default="")
        also = f"; {most} rose by {gains[most]:.2g}" if most and gains[most] > 0 else ""
        return (
            f"{names[worst[row]].removeprefix(COMPONENT)} is {one.level[row]:.2g} over "
            f"{e.cadence.spans(SMOOTH)} steps, {percent(max(share[row], 0.0))} of its best (about "
            f"{one.best[row]:.2g}; limit {percent(o.DECLINED)}), and the whole reward has not "
            f"fallen{also}"
        )

    return Measurement(holds, share, d.constant(o.DECLINED, share), message, severity=rank)


RULES = (
    Rule(
        "reward-component",
        Severity.WARNING,
        needs=("reward",),
        cause="One component of the reward takes over while another falls",
        action="look at responses, and weigh the component that rose less",
        meaning="A component of the reward has fallen, and the sum has not: the policy earns with "
        "another component what it loses with this one.",
        evidence=f"each component's mean over several windows against its best, as the reward's "
        f"own (`reward-decline`), under {percent(o.DECLINED)} of it, while the reward has not "
        "fallen. A warning where the component's name says that the answer is right (accuracy, "
        "correct, match …) or none does, info otherwise.",
        confused_with="A bonus for a shape or a length that is no longer needed.",
        false_alarms="at most 1 % of runs for each component, for steps that are independent",
        advice="Read responses from before and after. Lower the weight of the component that rose, "
        "cap it, or give it only to correct responses.",
        measure=replaced,
        unit="of its best",
        fires_below=True,
    ),
)
