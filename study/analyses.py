"""The paper's analyses on the recorded runs: numbers for the page, series for the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .bank import WINDOW
from .results import Result, Results

SHOWN = ("grpo", "grpo-llds-action")
SMOOTH = 10  # steps, in tables and pictures


@dataclass(frozen=True)
class Signal:
    """A signal worth a row of the table and a panel of the picture."""

    column: str
    words: str
    unit: str = ""


SIGNALS = (
    Signal("reward", "reward"),
    Signal("delta_correct", "Δ of correct responses", "nats/response"),
    Signal("delta_incorrect", "Δ of incorrect responses", "nats/response"),
    Signal("correct_logp", "likelihood of correct responses", "nats/token"),
    Signal("incorrect_logp", "likelihood of incorrect responses", "nats/token"),
    Signal("displaced_share", "displaced questions", "share, Δ(x) < 0"),
    Signal("lld_share", "displaced correct responses", "share, Δ ≤ 0"),
    Signal("good_first_action_share", "good first action in wrong rollouts", "share"),
    Signal("entropy", "entropy", "nats/token"),
    Signal("grad_norm", "gradient norm", "median of the step"),
    Signal("response_tokens", "length", "tokens/rollout"),
    Signal("valid_searches", "valid searches", "per rollout"),
)


@dataclass(frozen=True)
class Band:
    """A signal over the runs of an arm, smoothed: mean and standard deviation over seeds."""

    step: NDArray[np.int64]
    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    n: int


def band(runs: Sequence[Result], column: str) -> Band:
    """Runs of different length are averaged as far as each goes; unmeasured steps are left out."""
    smooth = pd.concat([trailing(r.signals, column) for r in runs], axis=1)
    sd = smooth.std(axis=1, ddof=0)
    return Band(
        smooth.index.to_numpy(np.int64), smooth.mean(axis=1).to_numpy(), sd.to_numpy(), len(runs)
    )


def trailing(signals: pd.DataFrame, column: str) -> pd.Series:
    """Mean of the measured ones of the last SMOOTH steps, by step."""
    return signals.set_index("step")[column].astype(float).rolling(SMOOTH, min_periods=1).mean()


def periods(results: Results) -> str:
    """Each signal at start, at the middle and at the end of GRPO and of LLDS, mean over seeds."""
    arms = [arm for arm in SHOWN if results.of(arm)]
    if not arms:
        return "No runs yet."
    head = ["signal", *(f"{arm}, {part}" for arm in arms for part in ("start", "middle", "end"))]
    lines = [head, ["---"] * len(head)]
    for signal in SIGNALS:
        cells = [signal.words + (f" ({signal.unit})" if signal.unit else "")]
        for arm in arms:
            mean = band(results.of(arm), signal.column).mean
            at = (min(SMOOTH, len(mean)) - 1, len(mean) // 2, len(mean) - 1)
            cells += [f"{mean[row]:.3g}" if np.isfinite(mean[row]) else "–" for row in at]
        lines.append(cells)
    counts = ", ".join(f"{arm}: {len(results.of(arm))} runs" for arm in arms)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{table}\n\nMeans over {SMOOTH} steps and over seeds ({counts})."


# -- breakdowns -----------------------------------------------------------------------------------


def windows(runs: Sequence[Result], breakdown: str) -> pd.DataFrame:
    """The windows of several runs under each other."""
    whole = pd.concat([r.windows for r in runs], ignore_index=True)
    return whole[whole["breakdown"] == breakdown]


def delta_by_action(runs: Sequence[Result]) -> pd.DataFrame:
    """Mean Δ of the actions of correct responses by window and index, over all runs: columns step,
    key, delta (nats/action), n."""
    frame = windows(runs, "action")
    frame = frame[frame["correct"].astype(bool)]
    sums = frame.groupby(["first_step", "key"])[["delta_sum", "n_delta"]].sum().reset_index()
    sums = sums[sums["n_delta"] > 0]
    return pd.DataFrame(
        {
            "step": sums["first_step"] + WINDOW // 2,
            "key": sums["key"],
            "delta": sums["delta_sum"] / sums["n_delta"],
            "n": sums["n_delta"],
        }
    )


def likelihood_by_searches(runs: Sequence[Result]) -> pd.DataFrame:
    """Mean log π_old per token of responses by their number of valid searches (Fig. 6 has it as
    NLL): columns key, correct, logp, n; over all steps of all runs."""
    frame = windows(runs, "searches")
    sums = frame.groupby(["key", "correct"])[["logp_sum", "n_tokens", "n"]].sum().reset_index()
    sums["logp"] = sums["logp_sum"] / sums["n_tokens"]
    return sums[["key", "correct", "logp", "n"]]
