"""The policy's tools: calls that fail, and a policy that stops calling."""

from __future__ import annotations

import numpy as np

from .. import detectors as d
from ..evidence import Evidence, once
from ..rule import CauseRank, Measurement, Rule, Severity
from .measures import latest, over_extreme, percent, share_above

FAILED = 0.5  # of the tool calls
FAILED_STEPS = 5
ABANDONED = 0.33  # × the largest trailing median of the valid searches
SEARCHES = d.MedianWindow(recent=5, gap=5, window=50, least=15)


@once
def outage(e: Evidence) -> Measurement:
    return share_above(e, "tool_fail_share", FAILED_STEPS, FAILED, "of the tool calls failed")


@once
def abandoned(e: Evidence) -> Measurement:
    ratio = over_extreme(e, e.column("valid_searches"), SEARCHES, np.fmax)

    def message(row: int) -> str:
        now = latest(e, e.column("valid_searches"), row, SEARCHES)
        return (
            f"{now:.2f} valid searches per rollout over {e.cadence.spans(SEARCHES.recent)} steps, "
            f"{percent(ratio[row])} of the usual (limit {percent(ABANDONED)})"
        )

    return Measurement(ratio < ABANDONED, ratio, d.constant(ABANDONED, ratio), message)


RULES = (
    Rule(
        "tool-outage",
        Severity.CRITICAL,
        needs=("tool_fail_share",),
        meaning=f"More than {percent(FAILED)} of the tool calls fail.",
        evidence=f"Share of tool calls that failed, mean over {FAILED_STEPS} steps.",
        advice="Restart the retriever; discard the steps trained meanwhile. This is not LLD.",
        confused_with="A policy that writes calls the tool refuses, if the trainer counts those as "
        "failed calls: then the share of invalid actions rises with it.",
        measure=outage,
        unit="of the tool calls",
        for_steps=3,
        cause=CauseRank.PRIMARY,
    ),
    Rule(
        "tool-abandoned",
        Severity.WARNING,
        needs=("valid_searches",),
        meaning=f"The policy makes less than {percent(ABANDONED)} of the searches it used to make.",
        evidence=f"Valid searches per rollout: the median of the last {SEARCHES.recent} steps, "
        f"under {ABANDONED:g} of the largest median of {SEARCHES.window} steps before.",
        advice="Look at samples: does it answer without looking, or fail to write a valid search?",
        confused_with="A tool that is switched off: then no search is made from one step on.",
        measure=abandoned,
        unit="of the largest median",
        for_steps=5,
        fires_below=True,
    ),
)
