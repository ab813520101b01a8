"""Alarms on noisier logs than the bank's: fewer rollouts a step, other rewards, sparse logging.

python -m benchmarks.noise [BANK [development|test|all]]

A log of another trainer seldom has more than the five signals of FOREIGN. Here the runs of a bank
are reduced to these and made noisier, as if each step had fewer rollouts; then they are logged
every fifth or tenth step, and their rewards put on other scales. Beside them stand made-up healthy
logs, longer than the bank's: a reward that rises and stays, with much noise.

Prints for each condition, over all draws: runs that held with a false critical, with any alarm of
at least a warning, and runs whose reward fell that were called critical, or warned of, at all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lldscope.core.schema import SIGNALS
from lldscope.diagnosis.assess import assess
from lldscope.diagnosis.rule import Severity
from lldscope.evaluation.bank import read_bank
from lldscope.evaluation.scoring import fall_of

BANK = Path(__file__).parents[1] / "sample_runs" / "bank"
FOREIGN = ("reward", "entropy", "grad_norm", "kl", "response_tokens")
DRAWS = 3
MADE = 60  # made-up healthy logs
STEPS = 600  # of a made-up log

Signals = pd.DataFrame
Change = Callable[[Signals, np.random.Generator], Signals]


@dataclass
class Count:
    """Runs, and those with a critical alarm, or with any alarm of at least a warning."""

    runs: int = 0
    critical: int = 0
    warned: int = 0

    def add(self, signals: Signals, rules: dict[str, int]) -> None:
        alerts = [a for a in assess(signals).alerts if a.severity >= Severity.WARNING]
        self.runs += 1
        self.warned += bool(alerts)
        self.critical += any(a.severity == Severity.CRITICAL for a in alerts)
        for alert in alerts:
            rules[alert.rule] = rules.get(alert.rule, 0) + 1

    def __str__(self) -> str:
        return f"{self.critical:>4}{self.warned:>5} of {self.runs:<4}"


def frame(columns: dict[str, Any]) -> Signals:
    """Signals with these columns; all others are NaN."""
    table = pd.DataFrame(columns).reindex(columns=list(SIGNALS.names))
    return table if "step" in columns else table.assign(step=np.arange(len(table)))


def foreign(signals: Signals) -> Signals:
    """The signals that a log of another trainer has."""
    return frame({name: signals[name].to_numpy(float) for name in ("step", *FOREIGN)})


# -- the bank, changed ----------------------------------------------------------------------------


def thinned(signals: Signals, rng: np.random.Generator, n: int) -> np.ndarray:
    """The reward as if a step had n rollouts.

    Its noise is that of the run's successive differences, so that questions shared by a group count
    once; a step of n in place of N rollouts has N/n of its variance.
    """
    reward = signals["reward"].to_numpy(float)
    rollouts = float(np.nanmedian(signals["n_responses"].to_numpy(float)))
    variance = np.nanmean(np.diff(reward) ** 2) / 2
    extra = max(rollouts / n - 1, 0.0) * variance
    shape = np.sqrt(np.clip(reward * (1 - reward), 0, None) * 4)  # none where all agree
    return np.clip(reward + rng.normal(0, np.sqrt(extra), len(reward)) * shape, 0, 1)


def rollouts(n: int) -> Change:
    return lambda s, rng: foreign(s.assign(reward=thinned(s, rng, n)))


def every(k: int, then: Change) -> Change:
    return lambda s, rng: then(s, rng).iloc[k - 1 :: k].reset_index(drop=True)


def scaled(times: float, plus: float, then: Change) -> Change:
    def change(signals: Signals, rng: np.random.Generator) -> Signals:
        changed = then(signals, rng)
        return changed.assign(reward=times * changed["reward"] + plus)

    return change


CONDITIONS: dict[str, Change] = {
    "as recorded, five signals": lambda s, rng: foreign(s),
    "64 rollouts a step": rollouts(64),
    "32 rollouts": rollouts(32),
    "16 rollouts": rollouts(16),
    "32 rollouts, every 5th step": every(5, rollouts(32)),
    "32 rollouts, every 10th step": every(10, rollouts(32)),
    "32 rollouts, rewards in [−1, 1]": scaled(2, -1, rollouts(32)),
    "32 rollouts, counts (× 5)": scaled(5, 0, rollouts(32)),
    "32 rollouts, sums (× 320)": scaled(320, 0, rollouts(32)),
    "32 rollouts, a format reward of 0.5 added": scaled(1, 0.5, rollouts(32)),
}


# -- made-up healthy logs -------------------------------------------------------------------------


def correlated(rng: np.random.Generator, phi: float, n: int = STEPS) -> np.ndarray:
    out = rng.standard_normal(n)
    for t in range(1, n):
        out[t] = phi * out[t - 1] + np.sqrt(1 - phi**2) * out[t]
    return out


def healthy(noise: float, phi: float, spikes: float) -> Callable[[np.random.Generator], Signals]:
    """A reward that rises to 0.5 and stays, noise a share of that, AR(1); gradient norms with
    spikes of 20 × in a share of the steps."""

    def make(rng: np.random.Generator) -> Signals:
        steps = np.arange(STEPS)
        reward = 0.5 * (1 - 0.8 * np.exp(-steps / 80)) + 0.5 * noise * correlated(rng, phi)
        norm = np.exp(0.3 * rng.standard_normal(STEPS))
        norm = np.where(rng.random(STEPS) < spikes, 20 * norm, norm)
        return frame(
            {
                "step": steps,
                "reward": np.clip(reward, 0, None),
                "entropy": 0.3 + 0.02 * correlated(rng, 0.8),
                "grad_norm": norm,
                "response_tokens": 200 + 10 * correlated(rng, 0.5),
                "kl": 2e-4 * steps * np.exp(0.2 * rng.standard_normal(STEPS)),
            }
        )

    return make


HEALTHY = {
    f"noise {noise:.0%} of the reward, AR(1) {phi:g}, spikes {spikes:.0%}": (noise, phi, spikes)
    for noise in (0.2, 0.33, 0.5)
    for phi, spikes in ((0.0, 0.0), (0.0, 0.02), (0.3, 0.02), (0.6, 0.02))
}


# -- the tables -----------------------------------------------------------------------------------


def labelled(bank: Path, split: str) -> Iterator[tuple[int | None, Signals]]:
    """Each run without a fault that held, and each whose reward fell or whose held-out score
    degraded, whichever the bank is labelled by: the step of that, None where it held, and its
    signals."""
    for run in read_bank(bank, split):
        if run.fault is None:
            signals = run.signals()
            fall = fall_of(run, signals) if run.by_reward else run.end_step
            if fall is not None or run.outcome == "held":
                yield fall, signals


def measure(
    runs: Iterable[tuple[int | None, Signals]], change: Change
) -> tuple[dict[str, Count], str]:
    counts, rules = {"held": Count(), "fell": Count()}, {"held": {}, "fell": {}}
    for number, (fall, signals) in enumerate(runs):
        label = "held" if fall is None else "fell"
        for draw in range(DRAWS):
            changed = change(signals, np.random.default_rng([number, draw]))
            counts[label].add(changed, rules[label])
    return counts, words(rules["held"])


def words(rules: dict[str, int]) -> str:
    return ", ".join(f"{n} {rule}" for rule, n in sorted(rules.items(), key=lambda x: -x[1]))


def main(bank: Path = BANK, split: str = "all") -> None:
    runs = list(labelled(bank, split))
    print(f"{bank.name}, {split}; columns: critical, warned, of all draws ({DRAWS} a run)")
    print(f"{'':46}{'held':>16}{'fell':>16}  alarms in runs that held")
    for name, change in CONDITIONS.items():
        counts, rules = measure(runs, change)
        print(f"{name:46}{counts['held']!s:>16}{counts['fell']!s:>16}  {rules}", flush=True)
    print(f"\n{MADE} made-up healthy logs of {STEPS} steps")
    for name, (noise, phi, spikes) in HEALTHY.items():
        count, rules = Count(), {}
        for seed in range(MADE):
            count.add(healthy(noise, phi, spikes)(np.random.default_rng([7, seed])), rules)
        print(f"{name:46}{count!s:>16}{'':16}  {words(rules)}", flush=True)


if __name__ == "__main__":
    main(*(f(a) for f, a in zip((Path, str), sys.argv[1:], strict=False)))
