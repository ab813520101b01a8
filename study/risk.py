"""A combined score of risk, chosen on the alarm bank before any signal of a run of the seed bank
was looked at, and not changed since; the seed bank says what it is worth.

    lldscope evaluate sample_runs/seed_bank --split all --detector study/risk.py
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from lldscope.evaluation.bank import read_bank
from lldscope.evaluation.ranking import SIGNALS, Floats, highest_so_far

ALARM_BANK = Path(__file__).parents[1] / "sample_runs" / "alarm_bank"
PARTS = ("reward: share of its best lost", "clip_share", "−retention")
"""One each of the outcome, of the step size and of the likelihood of correct responses. Of the
four combinations tried, one family left out at a time, their mean found most degradations."""


def score(signals: pd.DataFrame) -> Floats:
    """Mean of −log p over PARTS, where p is the share of the alarm bank's runs that held which ever
    reach what this run has reached: large where the run is beyond what runs that hold do."""
    return np.mean([_surprise(name, signals) for name in PARTS], axis=0)


def _surprise(name: str, signals: pd.DataFrame) -> Floats:
    limits = _highest_of_held()[name]
    reached = _reached(name, signals)
    above = len(limits) - np.searchsorted(limits, reached, "left")
    return -np.log((above + 1) / (len(limits) + 1))


def _reached(name: str, signals: pd.DataFrame) -> Floats:
    return highest_so_far(np.asarray(SIGNALS[name](signals), dtype=np.float64))


@cache
def _highest_of_held() -> dict[str, Floats]:
    """Part → the highest value of each of the alarm bank's runs that held, sorted."""
    frames = [run.signals() for run in read_bank(ALARM_BANK) if run.label == "held"]
    return {name: np.sort([_reached(name, f)[-1] for f in frames]) for name in PARTS}
