"""Logs of made-up trainings, each drawn with its own task, trainer and log; some of them die.

python -m tests.bench worlds

A policy of some competence answers questions in groups; rewards, entropy, gradient norms, KL and
length follow from that and from settings that are drawn: the scale and parts of the reward, the
size of the batch, cycles and epochs of the data, which signals are logged, and how often. A fate
lets the competence go from some step on, and with it what belongs to it. No formula of a rule is
used.

Printed: healthy logs with a critical alarm and with one of at least a warning; of each fate the
logs with a critical alarm, its median delay in steps after the onset, and the same of a warning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lldscope.diagnosis.assess import assess
from tests.helpers.rule_cases import frame

from .noise import Signals, correlated, words

# Steps that the fate takes, the share of the competence that is left, and what happens meanwhile:
# × entropy, gradient norm and KL (which may lead by some steps), and × length.
FATES: dict[str, tuple[tuple[float, float], float, float, float, float]] = {
    "sudden": ((1, 2), 0.3, 1, 1, 1),
    "fast": ((5, 15), 0.3, 4, 9, 0.3),
    "collapse": ((15, 50), 0.3, 7, 15, 3),
    "slow": ((100, 250), 0.6, 1.5, 1.5, 1),
    "early": ((5, 15), 0.3, 3, 5, 1),
    "short answers": ((10, 40), 0.3, 1.5, 2, 0.15),
    "entropy gone": ((20, 60), 0.3, 0.05, 1, 1),
}
LOGS = 200  # healthy ones
EARLY = 5  # steps before the onset from which an alarm is one of the fate


@dataclass(frozen=True)
class World:
    signals: Signals
    onset: int | None
    every: int  # steps between two rows


def world(seed: int, fate: str | None = None) -> World:
    rng = np.random.default_rng([seed, [None, *FATES].index(fate)])
    n = int(rng.choice([60, 100, 200, 400, 800] if fate is None else [100, 150, 200, 300, 600]))
    step = np.arange(n)
    onset = None if fate is None else int(rng.uniform(0.25, 0.75) * n)
    onset = int(rng.integers(6, 20)) if fate == "early" else onset
    (low, high), left, entropy_times, norm_times, length_times = FATES.get(
        fate or "", ((1, 2), 1, 1, 1, 1)
    )
    loss, lead = np.zeros(n), np.zeros(n)  # from 0 to 1
    if onset is not None:
        loss = np.clip((step - onset + 1) / rng.uniform(low, high), 0, 1)
        lead = np.clip((step - onset + rng.uniform(-5, 10)) / 20, 0, 1)
    learned = 1 - np.exp(-step / rng.uniform(10, 0.6 * n))
    group, questions = int(rng.choice([4, 8, 16])), int(rng.choice([4, 8, 16, 32, 64]))
    start = rng.uniform(0.05, 0.5)
    competence = start + learned * (min(start + rng.uniform(0.1, 0.5), 0.95) - start)
    competence = competence * _data(rng, step) * (1 - loss * (1 - left * rng.random()))
    right, alike = _rollouts(rng, np.clip(competence, 0.003, 0.99), questions, group)
    columns = {
        "step": step,
        "reward": _reward(rng, right, loss, questions * group),
        "entropy": _entropy(rng, learned) * (1 + lead * (entropy_times - 1)),
        "grad_norm": _norm(rng, right, alike) * (1 + lead * (norm_times - 1)),
        "response_tokens": _length(rng, learned) * (1 + loss * (length_times - 1)),
        "kl": 10 ** rng.uniform(-4, -2) * ((step + 1) / 20) ** rng.uniform(0.4, 1.3)
        * np.exp(rng.uniform(0.1, 0.4) * correlated(rng, 0.3, n)) * (1 + lead * (norm_times - 1)),
    }
    for name, values in (("zero_signal_share", alike), ("kl", None), ("entropy", None),
                         ("grad_norm", None), ("response_tokens", None)):
        if values is not None and rng.random() < 0.4:
            columns[name] = values
        elif values is None and rng.random() < 0.15:
            del columns[name]
    return _log(rng, pd.DataFrame(columns), onset)


def _data(rng: np.random.Generator, step: np.ndarray) -> np.ndarray:
    """Times the competence: cycles of difficulty, epochs over the same questions, or neither."""
    kind = rng.choice(["neither", "neither", "cycle", "epochs"])
    if kind == "cycle":
        return 1 + rng.uniform(0.03, 0.12) * np.sin(2 * np.pi * step / rng.uniform(15, 120))
    if kind == "epochs":
        return 1 + 0.06 * np.minimum(step // int(rng.uniform(20, 150)), 3)
    return np.ones(len(step))


def _rollouts(
    rng: np.random.Generator, competence: np.ndarray, questions: int, group: int
) -> tuple[np.ndarray, np.ndarray]:
    """Share of correct rollouts, and of groups whose rollouts are all right or all wrong."""
    alike = rng.uniform(0.8, 4)  # how much the questions differ in difficulty
    chance = rng.beta(
        alike * competence[:, None], alike * (1 - competence[:, None]),
        (len(competence), questions),
    )
    right = rng.binomial(group, chance)
    return right.mean(axis=1) / group, ((right == 0) | (right == group)).mean(axis=1)


def _reward(
    rng: np.random.Generator, right: np.ndarray, loss: np.ndarray, rollouts: int
) -> np.ndarray:
    step = np.arange(len(right))
    well_formed = np.clip(0.3 + 0.7 * (1 - np.exp(-step / rng.uniform(5, 40))) - 0.8 * loss, 0, 1)
    formed = rng.binomial(rollouts, well_formed) / rollouts
    noise = rng.normal(0, 1, len(right)) / np.sqrt(rollouts)
    schemes = [
        right, right, 2 * right - 1, right + 0.2 * formed, right - 0.5 * (1 - formed),
        5 * right + noise, 10 * right + 2 * formed - 3,
        right - 0.05 - 0.02 * correlated(rng, 0.8, len(right)),
    ]
    return schemes[rng.integers(len(schemes))]


def _entropy(rng: np.random.Generator, learned: np.ndarray) -> np.ndarray:
    shapes = [1 - 0.7 * learned, 1 + 0 * learned, 1 + rng.uniform(0.2, 0.8) * learned]
    noise = rng.uniform(0.02, 0.15) * correlated(rng, rng.uniform(0.2, 0.9), len(learned))
    return rng.uniform(0.1, 1.5) * shapes[rng.integers(3)] * np.exp(noise)


def _norm(rng: np.random.Generator, right: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """It follows the spread of the rewards, with heavy tails and now and then a spike; where all
    groups are alike only rounding is left."""
    n, scale = len(right), 10 ** rng.uniform(-2, 1)
    tail = np.clip(rng.uniform(0.1, 0.45) * rng.standard_t(rng.choice([3, 5, 30]), n), -3, 3.5)
    norm = scale * (0.3 + 2 * np.sqrt(right * (1 - right))) * np.exp(tail)
    spikes = rng.random(n) < rng.choice([0, 0, 0.01, 0.03])
    norm = np.where(spikes, norm * rng.uniform(3, 30, n), norm)
    return np.where(alike < 1, norm, scale * rng.choice([0, 1e-17, 1e-9]))


def _length(rng: np.random.Generator, learned: np.ndarray) -> np.ndarray:
    shapes = [1 + 0 * learned, 1 + rng.uniform(0.3, 3) * learned, 1 - 0.5 * learned]
    noise = rng.uniform(0.02, 0.12) * correlated(rng, 0.4, len(learned))
    return rng.uniform(50, 2000) * shapes[rng.integers(3)] * np.exp(noise)


def _log(rng: np.random.Generator, table: pd.DataFrame, onset: int | None) -> World:
    """Of longer trainings some have a row every five or ten steps, of which it has the last or the
    mean."""
    every = int(rng.choice([1, 1, 1, 5, 10])) if len(table) >= 200 else 1
    if rng.random() < 0.5:
        last = table["step"][every - 1 :: every].to_numpy()
        table = table.groupby(table["step"] // every).mean().assign(step=last)
    else:
        table = table.iloc[every - 1 :: every]
    columns = {name: table[name].to_numpy() for name in table}
    return World(frame({**columns, "step": columns["step"].astype(int)}), onset, every)


def main(logs: int = LOGS) -> None:
    counts, rules = {"critical": 0, "warning": 0}, dict[str, int]()
    for seed in range(logs):
        alerts = [a for a in assess(world(seed).signals).alerts if a.severity >= "warning"]
        counts["warning"] += bool(alerts)
        counts["critical"] += any(a.severity == "critical" for a in alerts)
        for alert in alerts:
            rules[alert.rule] = rules.get(alert.rule, 0) + 1
    print(f"{logs} healthy: critical {counts['critical']}, warned {counts['warning']}   "
          f"{words(rules)}")
    for fate in FATES:
        delays: dict[str, list[int]] = {"critical": [], "warning": []}
        for seed in range(logs // 5):
            trial = world(seed, fate)
            alerts = [a for a in assess(trial.signals).alerts if a.severity >= "warning"]
            onset = trial.onset or 0
            for level, mine in delays.items():
                first = [
                    start for a in alerts if a.severity >= level
                    for start, _ in a.episodes if start >= onset - EARLY
                ]
                mine += [min(first) - onset] if first else []
        cells = [f"{k} {len(x)} of {logs // 5}, {np.median(x):.0f}" for k, x in delays.items()]
        print(f"{fate:16}{';  '.join(cells)}", flush=True)
