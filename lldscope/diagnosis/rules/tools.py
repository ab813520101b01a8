"""The policy's tools: calls that fail, and a policy that stops calling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import detectors as d
from ..conditions import tool_use
from ..evidence import Evidence, once
from ..outcome import outcome, slips
from ..rule import CauseRank, Measurement, Rule, Severity
from ..usual import ABANDONED, RECENT, SCALES, fallen
from .measures import percent, share_above

FAILED = 0.5  # of the tool calls
FAILED_STEPS = 5


@once
def outage(e: Evidence) -> Measurement:
    """Critical once the reward has fallen with it."""
    failing = share_above(e, "tool_fail_share", FAILED_STEPS, FAILED, "of the tool calls failed")
    return replace(failing, grave=slips(e) | np.isnan(outcome(e).level))


@once
def abandoned(e: Evidence) -> Measurement:
    name, what = tool_use(e)
    small = fallen(e, name)

    def message(row: int) -> str:
        now = small.ratio[row] * small.usual[row]
        return (
            f"{now:.2f} {what} per rollout over {e.cadence.spans(RECENT)} steps, "
            f"{percent(small.ratio[row])} of the usual (limit {percent(ABANDONED)})"
        )

    limit = d.constant(ABANDONED, small.ratio)
    return Measurement(small.holds, small.ratio, limit, message)


RULES = (
    Rule(
        "tool-outage",
        severity=Severity.CRITICAL,
        needs=("tool_fail_share",),
        label="Retriever or tool outage",
        cause="Retriever or tool dead",
        action="fix it",
        back=True,
        meaning=f"More than {percent(FAILED)} of the tool calls fail. Critical once the reward "
        "falls with it.",
        evidence=f"Share of tool calls that failed, mean over {FAILED_STEPS} steps.",
        advice="Restart the retriever; discard the steps trained meanwhile. This is not LLD.",
        confused_with="Calls that the tool refuses because the policy writes them badly, where the "
        "trainer counts those as failed: then the share of invalid actions rises too.",
        measure=outage,
        unit="of the tool calls",
        for_steps=3,
        rank=CauseRank.PRIMARY,
    ),
    Rule(
        "tool-abandoned",
        needs=("valid_searches", "tool_calls"),
        cause="The policy stopped using its tools",
        action="read some responses",
        meaning=f"The policy makes under {percent(ABANDONED)} of the tool calls it used to make.",
        evidence=f"Valid searches, or tool calls, per rollout: {percent(ABANDONED)} of the usual "
        f"or less, as for entropy-surge but with up to {SCALES['valid_searches'].steps} steps.",
        advice="Read samples: does it answer without looking, or fail to write a valid call?",
        confused_with="A tool that is switched off: then no call is made from one step on.",
        measure=abandoned,
        unit="× usual",
        for_steps=5,
        inside=True,
        fires_below=True,
    ),
)
