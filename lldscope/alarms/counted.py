"""How often each rule fired wrongly in the study: on runs of sample_runs/bank that held.

`lldscope evaluate sample_runs/bank --split all` counts them; a test compares. Rules whose signals
those runs did not record are not counted there.
"""

from __future__ import annotations

HELD = 42  # runs
FIRED = {
    "lld-stagnation": 11,
    "lld-decay": 7,
    "lld-collapse": 2,
    "entropy-surge": 10,
    "entropy-floor": 0,
    "grad-explosion": 2,
    "reward-crash": 0,
    "reward-parsing": 0,
    "eval-gap": 3,
    "grad-sustained": 0,
    "length-collapse": 0,
    "tool-outage": 0,
    "tool-abandoned": 0,
    "zero-signal": 0,
    "wasted-rollouts": 20,
    "group-collision": 0,
    "truncation": 0,
    "mask-lint": 0,
    "nonfinite": 0,
    "engine-mismatch": 0,
    "lr-jump": 0,
}


def fired_wrongly(rule: str) -> str:
    """What was counted of a rule, in words."""
    if rule not in FIRED:
        return "not counted yet"
    return f"fired wrongly in {FIRED[rule]} of {HELD} study runs"
