"""What falls when: the likelihood of correct responses as a level, and the order of events."""

from __future__ import annotations

from statistics import median

import pandas as pd

from .analyses import SMOOTH, trailing
from .results import Result, Results
from .tables import GRPO, arms_of, mean_of, or_dash, so_far, table

SURGE = 1.5  # × its lowest ten-step mean, of the entropy
CLEARLY = 1.1  # × its start, of the (negative) level: a tenth under it


def levels(results: Results) -> str:
    """Per arm: the level of correct responses, ten-step means in nats/token, and log π of a fixed
    set of responses that were correct before training, nats/response."""
    head = (
        "arm", "runs", "level at the start", "lowest", "end", "runs a tenth under their start",
        "fixed set at the start", "end",
    )
    rows = []
    for arm in arms_of(results, ("main", "control", "variant")):
        runs = results.of(arm.name)
        series = [_whole(r, "correct_logp").dropna() for r in runs]
        ends = [(float(s.iloc[0]), float(s.min()), float(s.iloc[-1])) for s in series if len(s)]
        fixed = [f for r in runs if len(f := fixed_set(r))]
        under = sum(lowest < CLEARLY * start for start, lowest, _ in ends)
        rows.append(
            [f"`{arm.name}`", so_far(len(runs), results.planned(arm.name)),
             *(mean_of([e[i] for e in ends], ".3f") for i in range(3)), f"{under} of {len(ends)}",
             mean_of([float(f.iloc[0]) for f in fixed], ".1f"),
             mean_of([float(f.iloc[-1]) for f in fixed], ".1f")]
        )
    return table(head, rows)


def fixed_set(run: Result) -> pd.Series:
    """Mean log π of the probe set, nats/response, by the first step of each window."""
    w = run.windows
    rows = w[(w["breakdown"] == "probe") & (w["name"] == "probe_set_logp")]
    return rows.set_index("first_step")["value"].sort_index()


def order(results: Results) -> str:
    """Per run of plain GRPO: when the reward was at its best, under nine tenths and (for ten steps)
    under three quarters of that, and when likelihood and entropy told of it."""
    names = ("best", "under 0.9", "fall", "decay alarm", "entropy", "level")
    head = (
        "seed", "reward at its best", "under 0.9 of it", "fall (under 0.75)", "decay alarm",
        f"entropy {SURGE:g} × its lowest", "level a tenth under its start",
    )
    pairs = [(r, events(r)) for r in results.of(GRPO)]
    rows = [[str(r.plan.seed), *(or_dash(e[name]) for name in names)] for r, e in pairs]
    if pairs:
        columns = [[v for _, e in pairs if (v := e[name]) is not None] for name in names]
        rows.append(["median", *(f"{median(k):g}" if k else "–" for k in columns)])
    return table(head, rows)


def events(run: Result) -> dict[str, int | None]:
    """Step of each event, from ten-step means (the entropy: three-step means over the lowest of
    ten, as the alarm has it); None for one that did not come."""
    reward, level = _whole(run, "reward"), _whole(run, "correct_logp").dropna()
    entropy = run.signals.set_index("step")["entropy"].astype(float)
    lowest = entropy.rolling(SMOOTH).mean().cummin()
    until = reward[: run.fall] if run.fall is not None else reward
    best = int(until.idxmax())
    return {
        "best": best,
        "under 0.9": first(reward[best:] < 0.9 * reward[best]),
        "fall": run.fall,
        "decay alarm": run.decay,
        "entropy": first(entropy.rolling(3).mean() >= SURGE * lowest),
        "level": first(level < CLEARLY * level.iloc[0]) if len(level) else None,
    }


def _whole(run: Result, column: str) -> pd.Series:
    """Means over SMOOTH steps, from the step on that has so many; the first one is the start."""
    return trailing(run.signals, column).iloc[SMOOTH - 1 :]


def first(condition: pd.Series) -> int | None:
    """The first step at which it holds."""
    steps = condition.index[condition.to_numpy(bool)]
    return int(steps[0]) if len(steps) else None
