"""Whether a number is ordinary: the range of a signal in healthy logs, and values that are certain.

`healthy.csv` holds the median of each signal over each healthy log, public or of this project
(docs/research/public-logs.md); `python -m study.healthy` makes it.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.numbers import short
from ..core.trainers import Trainer
from ..runs import Run

HEALTHY = Path(__file__).with_name("healthy.csv")
LEAST = 5  # logs of a trainer; with fewer, logs of all trainers count
OWN = "lldscope"  # its runs are of a tiny policy, and no measure for others
NEAR_0 = 0.01  # a policy loss

# Signals that depend on the task less than rewards and lengths do, and their names.
SHOWN = {
    "entropy": "entropy", "grad_norm": "gradient norm", "kl": "KL to the reference",
    "step_kl": "KL of a step", "clip_share": "clip share", "loss_policy": "policy loss",
    "lr": "learning rate", "zero_signal_share": "groups without signal",
    "truncated_share": "responses cut", "engine_gap": "engine gap", "engine_k3": "engine KL",
    "engine_diff": "engine difference", "engine_prob_diff": "engine difference, probabilities",
}


def ordinary(run: Run, trainer: Trainer) -> list[dict[str, Any]]:
    """The median of each signal of a run, with the range of medians in healthy logs: of the same
    trainer, or of all where there are fewer than LEAST."""
    with HEALTHY.open(encoding="utf-8", newline="") as file:
        logs = list(csv.DictReader(file))
    table, answer = run.signals(), []
    for name, label in SHOWN.items():
        values = _finite(table[name])
        having = [log for log in logs if log[name]]
        of, whose = [log for log in having if log["trainer"] == trainer.id], trainer.name
        if len(of) < LEAST:
            of, whose = [log for log in having if log["trainer"] != OWN], "any trainer"
        if not len(values) or len(of) < LEAST:
            continue
        medians = [float(log[name]) for log in of]
        answer.append({
            "signal": name, "label": label, "median": float(f"{np.median(values):.3g}"),
            "low": min(medians), "high": max(medians), "logs": len(of), "trainer": whose,
            "repositories": len({log["repository"].partition("@")[0] for log in of}),
        })
    return answer


def _finite(column: Any) -> NDArray[np.float64]:
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.asarray(values[np.isfinite(values)])


def in_words(of: dict[str, Any]) -> str:
    """One entry of `ordinary` as a sentence."""
    places = ", all of one repository" if of["repositories"] == 1 else ""
    beyond = "above them" if of["median"] > of["high"] else ""
    beyond = "below them" if of["median"] < of["low"] else beyond
    return (
        f"{of['label']} {short(of['median'])}{beyond and f', {beyond}'}: {short(of['low'])} to "
        f"{short(of['high'])} in {of['logs']} healthy logs of {of['trainer']}{places}"
    )


def identities(run: Run) -> list[str]:
    """Numbers that look like a fault and are right."""
    table, answer = run.signals(), []
    loss, clipped, kl = (_finite(table[name]) for name in ("loss_policy", "clip_share", "kl"))
    if len(loss) and abs(np.median(loss)) < NEAR_0:
        answer.append(
            "A policy loss near 0 is expected: in the first update of a batch every ratio is 1 and "
            "the advantages of a group add up to 0. Its gradient is not 0."
        )
    if len(clipped) and np.median(clipped) == 0:
        answer.append(
            "A clip share of 0 is expected with one update per batch: every ratio is 1 there."
        )
    if len(kl) and kl[0] == 0:
        answer.append("A KL of 0 in the first step is expected: the policy is the reference yet.")
    return answer
