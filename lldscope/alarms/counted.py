"""How often each rule fired wrongly: in runs of sample_runs/alarm_bank that held, by their
held-out exact match.

`lldscope evaluate sample_runs/alarm_bank --split all` counts them; a test compares.
"""

from __future__ import annotations

# Rule → runs in which it fired, of those that held and recorded its signals.
FIRED = {
    "lld-stagnation": (8, 60),
    "lld-decay": (1, 60),
    "retention-loss": (12, 60),
    "lld-collapse": (0, 60),
    "entropy-surge": (4, 60),
    "entropy-floor": (0, 60),
    "grad-explosion": (0, 60),
    "reward-decline": (0, 60),
    "reward-crash": (0, 60),
    "reward-parsing": (0, 60),
    "eval-gap": (8, 60),
    "grad-sustained": (0, 60),
    "length-collapse": (0, 60),
    "tool-outage": (0, 21),
    "tool-abandoned": (0, 60),
    "zero-signal": (0, 60),
    "wasted-rollouts": (2, 60),
    "group-collision": (0, 60),
    "repetition": (0, 59),
    "truncation": (0, 60),
    "mask-lint": (0, 60),
    "nonfinite": (0, 60),
    "step-size": (9, 60),
    "lr-jump": (0, 60),
}


def fired_wrongly(rule: str) -> str:
    """What was counted of a rule, in words."""
    if rule not in FIRED:
        return "not counted yet"
    fired, held = FIRED[rule]
    return f"fired in {fired} of {held} healthy study runs"
