"""How often each rule fired wrongly: in runs of sample_runs/alarm_bank that held, by their
held-out exact match.

`lldscope evaluate sample_runs/alarm_bank --split all` counts them; a test compares.
"""

from __future__ import annotations

# Rule → runs in which it fired, of those that held and recorded its signals.
FIRED = {
    "lld-stagnation": (8, 63),
    "lld-decay": (1, 63),
    "retention-loss": (12, 63),
    "lld-collapse": (0, 63),
    "entropy-surge": (4, 63),
    "entropy-floor": (0, 63),
    "grad-explosion": (0, 63),
    "grad-sustained": (0, 63),
    "grad-vanishing": (0, 63),
    "length-collapse": (1, 63),
    "length-growth": (0, 63),
    "clip-share": (3, 63),
    "reward-decline": (0, 63),
    "reward-crash": (0, 63),
    "step-change": (0, 63),
    "score-flat": (0, 63),
    "reward-parsing": (0, 63),
    "eval-gap": (8, 63),
    "tool-outage": (0, 21),
    "tool-abandoned": (0, 63),
    "zero-signal": (0, 63),
    "wasted-rollouts": (2, 63),
    "group-collision": (0, 63),
    "truncation": (0, 63),
    "mask-lint": (0, 63),
    "nonfinite": (0, 63),
    "step-size": (9, 63),
    "lr-jump": (0, 63),
    "repetition": (0, 62),
}


def fired_wrongly(rule: str) -> str:
    """What was counted of a rule, in words."""
    if rule not in FIRED:
        return "not counted yet"
    firings, runs = FIRED[rule]
    return f"fired in {firings} of {runs} runs of the tiny policy whose held-out score held"
