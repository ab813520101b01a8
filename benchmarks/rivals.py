"""Other bets on the same score, and alarms without a guarantee that people use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from lldscope.diagnosis import decay_test as decay
from lldscope.diagnosis import detectors as d

Fires = Callable[[pd.DataFrame, float], np.ndarray]


def column(signals: pd.DataFrame, name: str) -> d.Series:
    return signals[name].to_numpy(dtype=np.float64, na_value=np.nan)


# -- bets -----------------------------------------------------------------------------------------


def mixture(values: d.Series, arl: float) -> np.ndarray:
    return d.e_detector(values, arl) >= arl


def cusum(values: d.Series, arl: float) -> np.ndarray:
    """max(M, 1) where Shiryaev–Roberts has M + 1: never above it, so never earlier."""
    bets = np.array(d.MIXTURE)
    evidence, out = np.zeros(len(bets)), np.zeros(len(values))
    for t, s in enumerate(values):
        if not np.isnan(s):
            evidence = np.maximum(evidence, 1.0) * (1.0 + bets * s)
        out[t] = evidence.mean()
    return out >= arl


def adaptive(values: d.Series, arl: float, window: int = 20) -> np.ndarray:
    """aGRAPA (Waudby-Smith and Ramdas, arXiv 2010.09686): mean over mean square of the last
    `window` scores, one bet instead of a mixture."""
    evidence, past, out = 0.0, [], np.zeros(len(values))
    for t, s in enumerate(values):
        if not np.isnan(s):
            bet = 0.25
            if len(past) >= 5:
                recent = np.array(past[-window:])
                bet = float(np.clip(recent.mean() / (np.mean(recent**2) + 1e-3), 0.05, 0.95))
            evidence = (evidence + 1.0) * (1.0 + bet * s)
            past.append(s)
        out[t] = evidence
    return out >= arl


BETS = {"cusum e-detector": cusum, "adaptive bets, 20 steps": adaptive}


# -- rivals ---------------------------------------------------------------------------------------


def level_cusum(signals: pd.DataFrame, arl: float) -> np.ndarray:
    """Page's CUSUM on the level in units of its first 40 steps: k = 0.5, h = 5 (ARL 938 on
    independent normal noise, Siegmund)."""
    level = column(signals, "correct_logp")
    first = level[np.isfinite(level)][:40]
    z = (level - first.mean()) / (first.std(ddof=1) + 1e-12) if len(first) == 40 else level * np.nan
    total, out = 0.0, np.zeros(len(z), dtype=bool)
    for t in range(len(z)):
        if np.isfinite(z[t]) and np.isfinite(level[: t + 1]).sum() > 40:
            total = max(0.0, total - z[t] - 0.5)
        out[t] = total > 5
    return out


def level_only(signals: pd.DataFrame, arl: float) -> np.ndarray:
    result = decay.test(signals.assign(delta_correct=np.nan), arl)
    return result.value >= result.threshold


def entropy_gain(signals: pd.DataFrame, arl: float) -> np.ndarray:
    entropy = column(signals, "entropy")
    lowest = np.fmin.accumulate(d.trailing_mean(entropy, 10, 10))
    return d.trailing_mean(entropy, 3, 1) > lowest + 0.1


def reward_drop(signals: pd.DataFrame, arl: float) -> np.ndarray:
    mean = d.trailing_mean(column(signals, "reward"), 10, 10)
    return mean < 0.8 * np.fmax.accumulate(mean)


def over_median(values: d.Series, recent: int, gap: int, window: int, least: int) -> d.Series:
    """Median of the last `recent` steps over that of the `window` that end `gap` steps ago."""
    now = d.trailing_median(values, recent, 1)
    base = d.trailing_median(d.shifted(values, gap), window, least)
    return np.divide(now, base, where=base > 0, out=np.full(len(base), np.nan))


RIVALS: dict[str, Fires] = {
    "lldscope on levels only (no Δ)": level_only,
    "gradient norm > 3 × median of 30": lambda s, arl: (
        over_median(column(s, "grad_norm"), 1, 1, 30, 10) > 3
    ),
    "entropy > 1.5 × median of 50": lambda s, arl: (
        over_median(column(s, "entropy"), 3, 10, 50, 15) > 1.5
    ),
    "entropy > 2 × median of 30": lambda s, arl: (
        over_median(column(s, "entropy"), 3, 10, 30, 15) > 2
    ),
    "entropy > its lowest + 0.1 nats/token": entropy_gain,
    "reward < 0.8 × its best": reward_drop,
    "CUSUM on the level, k ½, h 5": level_cusum,
}
