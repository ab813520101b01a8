"""The words for phases, verdicts, evidence and findings."""

from __future__ import annotations

from lldscope.diagnosis.registry import LABELS, STALLED

PHASES: dict[str | None, str] = {
    "warmup": "Too few steps to judge.",
    "healthy": "Correct responses gain likelihood, or no loss was detected.",
    "stagnation": "Phase I: the reward rises, the likelihood of correct responses does not.",
    "decay": "Phase II: the updates lower the likelihood of correct responses.",
    "collapse": "Phase III: decay, and gradients or entropy rise sharply or the reward crashes.",
    "recovered": "The run has left decay or collapse.",
    None: "No phase: the log has no likelihood.",
}

EVIDENCE = {  # notes to the words of `palette.EVIDENCE`
    "delta": "Likelihood before and after the update was recorded: best evidence.",
    "level": "Only likelihood levels were recorded: alarms are weaker, false-alarm rate unknown.",
    "symptoms": "No likelihood was recorded: only reward, entropy and gradients can be judged.",
}

LOOK_ALIKES = LABELS | {STALLED.id: STALLED.label}

FINDINGS = {
    "supported": "the log shows it",
    "consequence": "present, and something else began before it",
    "ruled_out": "measured and not present",
    "not_shown": "what was measured neither shows it nor excludes it",
    "not_observable": "this log cannot tell",
}

NO_RUNS = (
    "There are no runs here yet. Start a training that records into this folder, or run "
    "`lldscope demo`; runs appear by themselves."
)


def age(seconds: float | None, rows: bool = False) -> str:
    """How long ago, as people say it; empty where there are `rows` whose time is not recorded."""
    if seconds is None:
        return "" if rows else "no row yet"
    for limit, size, unit in ((90, 1, "s"), (5400, 60, "min"), (129_600, 3600, "h")):
        if seconds < limit:
            return f"{max(0.0, seconds) / size:.0f} {unit} ago"
    return f"{seconds / 86_400:.0f} days ago"
