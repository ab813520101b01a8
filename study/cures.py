"""What helps against two causes: nothing, LLDS from the start, or what the guard does about the
alarm that names the cause."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from .arms import CURE_ARMS, CURE_BANK, ILLS, TREATMENTS, Arm
from .bank import assess_exported, exported_signals, index
from .results import Results
from .stats import paired
from .tables import spread, table

LAST = 10  # steps of the final reward
PAIRS = (("guard", "none"), ("guard", "llds"), ("llds", "none"))
ACTED_ON = TREATMENTS["guard"][1]["guard_on"].split(",")

Lines = dict[int, dict[str, Any]]
"""Seed → line of the index, of the runs of an arm."""


def cures(results: Results, bank: Path = CURE_BANK) -> str:
    """Arm by arm the end of the runs, and the treatments of a cause against each other, seed by
    seed. Of the results nothing is taken: these runs are in a bank of their own."""
    lines: dict[str, Lines] = {}
    for line in index(bank).values():
        lines.setdefault(line["arm"], {})[line["seed"]] = line
    if not lines:
        return "No runs yet."
    head = ("arm", "seeds", "greedy EM at the start", "at the end", "final reward",
            "alarms that the guard acts on, and their first step")
    rows = [_cells(arm, lines[arm.name], bank) for arm in CURE_ARMS if arm.name in lines]
    return f"{table(head, rows)}\n\n{_compared(lines)}"


def _ends(line: dict[str, Any]) -> tuple[float, float]:
    """Greedy exact match before the first step and after the last one."""
    values = list(line["em_greedy"].values())
    return values[0], values[-1]


def _cells(arm: Arm, lines: Lines, bank: Path) -> list[str]:
    starts, ends = zip(*map(_ends, lines.values()), strict=True)
    rewards = [
        float(np.nanmean(exported_signals(line["run"], bank)["reward"].astype(float)[-LAST:]))
        for line in lines.values()
    ]
    alarms: dict[str, list[int]] = {}
    for line in lines.values():
        for alarm in assess_exported(line["run"], bank=bank).alerts:
            if alarm.rule in ACTED_ON:
                alarms.setdefault(alarm.rule, []).append(alarm.step)
    cells = [f"`{rule}` {len(s)} of {len(lines)}, {spread(s)}" for rule, s in alarms.items()]
    return [
        f"`{arm.name}` {arm.words}", str(len(lines)), f"{mean(starts):.2f}",
        f"{mean(ends):.2f} ({', '.join(f'{e:.2f}' for e in ends)})", f"{mean(rewards):.2f}",
        "; ".join(cells) or "–",
    ]


def _compared(lines: dict[str, Lines]) -> str:
    head = ("cause", "first − second", "seeds", "greedy EM at the end", "95 % interval",
            "first higher", "p")
    rows = []
    for ill, (words, *_) in ILLS.items():
        for first, second in PAIRS:
            a, b = (lines.get(f"cure-{ill}-{name}", {}) for name in (first, second))
            both = sorted(a.keys() & b.keys())
            if len(both) < 2:
                continue
            c = paired([_ends(a[s])[1] - _ends(b[s])[1] for s in both])
            rows.append((
                words, f"{first} − {second}", str(c.n), f"{c.mean:+.3f}",
                f"{c.low:+.3f} to {c.high:+.3f}", f"{c.above} of {c.n}", f"{c.p:.3f}",
            ))
    return table(head, rows)
