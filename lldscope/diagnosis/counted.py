"""How often each rule fired wrongly: in runs of sample_runs/alarm_bank that held, by their
held-out exact match. `python -m tests.study report` counts them and writes counted.json.
"""

from __future__ import annotations

import json
from pathlib import Path

COUNTS = Path(__file__).with_suffix(".json")
# Rule → runs in which it fired, of those that held and recorded its signals.
FIRED: dict[str, tuple[int, int]] = {
    rule: (firings, runs) for rule, (firings, runs) in json.loads(COUNTS.read_bytes()).items()
}


def fired_wrongly(rule: str) -> str:
    """What was counted of a rule, in words."""
    if rule not in FIRED:
        return "not counted yet"
    firings, runs = FIRED[rule]
    return f"fired in {firings} of {runs} runs of the tiny policy whose held-out score held"
