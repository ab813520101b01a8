"""Alarms on made-up healthy logs of 200 and 1,000 steps: every one of them is false.

python -m benchmarks healthy

Nothing was trained: the numbers are drawn, each kind with one thing that healthy training does and
an alarm may take for a fault. Prints for each kind the logs with an alarm of at least a warning and
those with a critical one, and which rules fired; beside them other packages, where they are
installed (`python -m benchmarks rivals` installs them).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from .noise import Signals, correlated, frame, words
from .rival_packages import Verdicts, assessed, packages, python_if_installed

LENGTHS = (200, 1000)  # steps
DRAWS = 60  # logs of each kind and length
GROUP = 8  # rollouts of a question
LOWER_QUARTER = -0.674  # of the normal distribution
NO_GRADIENT = 3e-17  # the norm that is logged where all rewards of a group are equal

Columns = dict[str, np.ndarray]
Change = Callable[[Columns, np.random.Generator], Columns]  # the columns that differ


def plain(rng: np.random.Generator, steps: int, rollouts: int = 256) -> Columns:
    """Five signals and the tool calls of a policy that learns: the share of correct rollouts rises
    from 0.1 to 0.6. A question has its own probability of success, which its group shares."""
    rise = learned(steps)  # (T,)
    chance = 0.1 + 0.5 * rise
    questions = rng.beta(2 * chance[:, None], 2 - 2 * chance[:, None], (steps, rollouts // GROUP))
    small = 1 / np.sqrt(rollouts)
    return {
        "step": np.arange(steps),
        "reward": rng.binomial(GROUP, questions).mean(axis=1) / GROUP,
        "entropy": 0.6 - 0.25 * rise + 0.01 * correlated(rng, 0.8, steps),
        "grad_norm": 0.5 * np.exp(0.3 * rng.standard_normal(steps)),
        "response_tokens": 200 * (1 + 0.3 * rise) * (1 + small * correlated(rng, 0.5, steps)),
        "kl": 2e-4 * np.arange(1, steps + 1) * np.exp(0.2 * rng.standard_normal(steps)),
        "valid_searches": 2 + small * rng.standard_normal(steps),
    }


def learned(steps: int) -> np.ndarray:
    """From 0 to 1, two thirds of it in the first 60 steps."""
    return 1 - np.exp(-np.arange(steps) / 60)


def penalties(c: Columns, rng: np.random.Generator) -> Columns:
    """Half a point off where the format is wrong, which becomes rare."""
    wrong = 0.6 * (1 - 0.95 * learned(len(c["step"])))
    return {"reward": c["reward"] - 0.5 * rng.binomial(256, wrong) / 256}


def below_zero(c: Columns, rng: np.random.Generator) -> Columns:
    """Nothing is right in the first twelve steps, and long answers cost a little."""
    none_right = np.arange(len(c["step"])) < 12
    return {
        "reward": np.where(none_right, 0.0, c["reward"])
        - rng.uniform(0.001, 0.003, len(none_right))
    }


def heavy(c: Columns, rng: np.random.Generator) -> Columns:
    n = len(c["step"])
    score = 1 + 2 * learned(n) + 0.2 * rng.standard_t(3, n)
    norm = 0.5 * np.exp(0.3 * rng.standard_t(2, n))
    return {"reward": score, "grad_norm": np.minimum(norm, 1e3)}


def warm_up(c: Columns, rng: np.random.Generator) -> Columns:
    step = c["step"]
    lr = 1e-6 * np.minimum((step + 1) / 20, 1.0)
    return {"lr": lr, "grad_norm": c["grad_norm"] * (1 + 4 * np.exp(-step / 10))}


def without_gradient(c: Columns, rng: np.random.Generator) -> Columns:
    """Some steps in a row: what follows another is like it."""
    norm = c["grad_norm"]
    none = correlated(rng, 0.8, len(norm)) < LOWER_QUARTER
    return {"grad_norm": np.where(none, NO_GRADIENT, norm)}


def doubling(c: Columns, rng: np.random.Generator) -> Columns:
    n = len(c["step"])
    return {"entropy": 0.3 * (1 + learned(n)) + 0.01 * correlated(rng, 0.8, n)}


def cyclic(c: Columns, rng: np.random.Generator) -> Columns:
    """Harder and easier questions in turn, in cycles of 50 steps: 18 % less at the hardest."""
    return {"reward": c["reward"] * (1 + 0.1 * np.sin(c["step"] * 2 * np.pi / 50))}


def unchanged(c: Columns, rng: np.random.Generator) -> Columns:
    return {}


KINDS: dict[str, tuple[int, Change]] = {  # rollouts a step, and what is different
    "256 rollouts": (256, unchanged),
    "64 rollouts": (64, unchanged),
    "entropy doubles while the reward rises": (256, doubling),
    "a quarter of the steps without gradient": (256, without_gradient),
    "rewards with penalties, under zero": (256, penalties),
    "rewards a hair under zero at first": (256, below_zero),
    "heavy tails": (256, heavy),
    "cyclic curriculum": (256, cyclic),
    "learning-rate warm-up": (256, warm_up),
}


def made_up(kind: str, steps: int, seed: int) -> Signals:
    rng = np.random.default_rng([list(KINDS).index(kind), steps, seed])
    rollouts, change = KINDS[kind]
    columns = plain(rng, steps, rollouts)
    return frame({**columns, **change(columns, rng)})


def judge(logs: list[Signals]) -> list[Verdicts]:
    """Verdicts on each log: ours, and those of other packages where they are installed."""
    python = python_if_installed()
    theirs = packages(python, logs) if python else [{} for _ in logs]
    return [{"lldscope": assessed(log), **t} for log, t in zip(logs, theirs, strict=True)]


def count(verdicts: list[Verdicts], name: str) -> str:
    return " / ".join(
        str(sum(level in v[name].first for v in verdicts)) for level in ("critical", "warning")
    )


def main(draws: int = DRAWS) -> None:
    for steps in LENGTHS:
        print(f"\n{steps} steps, {draws} logs of each kind: critical / warning or worse")
        for kind in KINDS:
            verdicts = judge([made_up(kind, steps, seed) for seed in range(draws)])
            cells = [f"{name} {count(verdicts, name)}" for name in verdicts[0]]
            alarms = Counter(rule for v in verdicts for rule in set(v["lldscope"].alarms))
            print(f"{kind:42}{';  '.join(cells)}   {words(alarms)}", flush=True)
