"""How well a score separates runs that degrade from runs that hold, before they degrade.

A detector maps the signals of a run to one score per row, higher if more alarming; a score may use
only its own and earlier rows. Runs are compared within arms (runs of one recipe), so recognizing
the recipe gains nothing; and over the same steps, so the number of steps gains nothing.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ..core.errors import UsageError
from ..diagnosis.decay_test import test as decay_test
from ..diagnosis.detectors import floats, trailing_mean, trailing_median
from .bank import ENDS, LabelledRun

Detector = Callable[[pd.DataFrame], ArrayLike]
Floats = NDArray[np.float64]

FALSE_SHARE = 0.05  # of the runs that held may fire
AHEAD = 0.2  # share of the steps before the end that the second AUROC leaves out
SMOOTH = 10  # steps of a trailing mean
LEAST = 5  # measured steps in it
REPLICATES = 400  # bootstrap samples
SHUFFLES = 20
LEVEL = (2.5, 97.5)  # percentiles of the interval
WITHHELD = ("eval_score", "eval_n")  # from detectors, if they define the label


def _mean(name: str, sign: float = 1.0) -> Detector:
    return lambda signals: sign * trailing_mean(floats(signals, name), SMOOTH, LEAST)


def _reward_lost(signals: pd.DataFrame) -> Floats:
    """The share of the best ten-step mean of the reward that is lost."""
    mean = trailing_mean(floats(signals, "reward"), SMOOTH, LEAST)
    best = np.fmax.accumulate(mean)
    return np.where(best > 0, 1 - mean / np.where(best > 0, best, 1), np.nan)


def _times_median(name: str) -> Detector:
    """Ten-step mean over the median of the fifty steps before."""

    def score(signals: pd.DataFrame) -> Floats:
        values = floats(signals, name)
        before = np.full(len(values), np.nan)
        before[SMOOTH:] = trailing_median(values, 50, LEAST)[:-SMOOTH]
        return trailing_mean(values, SMOOTH, LEAST) / np.where(before > 0, before, np.nan)

    return score


SIGNALS: dict[str, Detector] = {
    "reward: share of its best lost": _reward_lost,
    "clip_share": _mean("clip_share"),
    "step_kl": _mean("step_kl"),
    "−retention": _mean("retention", -1),
    "−delta_correct": _mean("delta_correct", -1),
    "lld_share": _mean("lld_share"),
    "evidence of lld-decay": lambda s: decay_test(s, 2000).evidence,
    "entropy": _mean("entropy"),
    "entropy × its median": _times_median("entropy"),
    "grad_norm × its median": _times_median("grad_norm"),
    "response_tokens × their median": _times_median("response_tokens"),
    "truncated_share": _mean("truncated_share"),
}
"""Detectors by a single signal, each the mean of ten steps."""

OWN, STEP, ARM = "your detector", "step number only", "configuration only"
SHUFFLED = "labels shuffled"
CONTROLS = (STEP, ARM, SHUFFLED)


def read_detector(file: Path) -> Detector:
    """The function `score` of a Python file, which is executed. It maps the signals of a run (a
    DataFrame with the columns of `lldscope schema signals`, one row per step) to one number per
    row."""
    if not file.is_file():
        raise UsageError(f"There is no file {file}.")
    try:
        function = runpy.run_path(str(file)).get("score")
    except Exception as error:  # it is the user's code: whatever it raises
        raise UsageError(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise UsageError(f"{file} has no function score(signals) that returns a score per row.")
    return function


@dataclass(frozen=True)
class Trace:
    """The highest score of a run up to each row; −inf before the first. `end` is the last step of
    the run; None if it held."""

    arm: str
    end: int | None
    steps: NDArray[np.int64]
    highest: Floats

    def before(self, step: float) -> float:
        """The highest score before a step."""
        rows = int(np.searchsorted(self.steps, step))
        return float(self.highest[rows - 1]) if rows else -np.inf

    def first_over(self, limit: float) -> int | None:
        """The first step with a score over the limit."""
        rows = np.flatnonzero(self.highest > limit)
        return int(self.steps[rows[0]]) if len(rows) else None


@dataclass(frozen=True)
class Ranking:
    """The performance of a detector. Intervals are 95 % bootstrap intervals, over arms and the runs
    of each.

    `auroc`: the probability that a run that ended had a higher score before its end than a run of
    the same arm that held; ties count half. `ahead`: the same over the first four fifths of the
    steps. `pooled`: the same over all arms. The limit is the lowest that at most FALSE_SHARE of the
    runs that held ever pass, in arms with runs of both kinds; `false` counts them. `hits` counts
    the runs that passed it before their end. `lead_median` are the steps of the hits from there to
    the end, `lead_share_median` a share of the end.
    """

    detector: str
    auroc: float | None
    auroc_interval: tuple[float, float] | None
    ahead: float | None
    pooled: float
    hits: tuple[int, int]
    hit_interval: tuple[float, float] | None
    false: tuple[int, int]
    lead_median: float | None
    lead_share_median: float | None


HEAD = (
    "detector", "AUROC within arms (95 %)", "over the first 80 %", "AUROC over all arms",
    "hits at 5 % false (95 %)", "steps of lead, median", "share of the way",
)


def cells(ranking: Ranking) -> list[str]:
    """A row of the table under HEAD."""

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    low, high = ranking.auroc_interval or (np.nan, np.nan)
    least, most = (100 * share for share in ranking.hit_interval or (np.nan, np.nan))
    lead, share, (k, n) = ranking.lead_median, ranking.lead_share_median, ranking.hits
    return [
        ranking.detector,
        f"{number(ranking.auroc)} ({low:.2f}–{high:.2f})" if ranking.auroc_interval else "–",
        number(ranking.ahead),
        number(ranking.pooled),
        f"{k} of {n} ({least:.0f}–{most:.0f} %)" if n else "–",
        "–" if lead is None else f"{lead:g}",
        "–" if share is None else f"{100 * share:.0f} %",
    ]


def rank(runs: Sequence[LabelledRun], user_score: Detector | None = None) -> list[Ranking]:
    """Rank the user's detector (if any), the single signals, and three controls that must fail: the
    step number; the configuration (the share of the arm's runs that ended); and the user's
    detector, or the best signal, with labels shuffled within each arm (the median of SHUFFLES).
    Runs with a fault, and runs that neither ended nor held, do not count. Empty unless there are
    runs of both kinds."""
    runs = [r for r in runs if r.label in ENDS or r.label == "held"]
    endings: dict[str, list[bool]] = {}
    for run in runs:
        endings.setdefault(run.arm, []).append(run.end_step is not None)
    if len({kind for kinds in endings.values() for kind in kinds}) < 2:
        return []
    detectors = ({OWN: user_score} if user_score else {}) | SIGNALS
    traces: dict[str, list[Trace]] = {name: [] for name in (*detectors, STEP, ARM)}
    for run in runs:
        frame = run.signals()
        if not run.by_reward:
            frame[list(WITHHELD)] = np.nan
        scores = {name: _scores(detector, frame, run) for name, detector in detectors.items()}
        scores[STEP] = frame["step"].to_numpy(np.float64)
        scores[ARM] = np.full(len(frame), np.mean(endings[run.arm]))
        for name, values in scores.items():
            steps = frame["step"].to_numpy(np.int64)
            traces[name].append(Trace(run.arm, run.end_step, steps, highest_so_far(values)))
    rankings = [ranking(name, group) for name, group in traces.items()]
    best = OWN if user_score else max(rankings[: len(SIGNALS)], key=lambda r: r.auroc or 0).detector
    return [*rankings, _shuffled(traces[best])]


def highest_so_far(scores: Floats) -> Floats:
    """The highest score up to each row; −inf before the first number."""
    return np.fmax.accumulate(np.where(np.isnan(scores), -np.inf, scores))


def _scores(detector: Detector, frame: pd.DataFrame, run: LabelledRun) -> Floats:
    try:
        values = np.asarray(detector(frame.copy()), dtype=np.float64)
    except Exception as error:  # it may be the user's code: whatever it raises
        words = f"{type(error).__name__}: {error}"
        raise UsageError(f"The detector fails on the run {run.name}: {words}") from error
    if values.shape != (len(frame),):
        raise UsageError(
            f"The detector returns an array of shape {values.shape} for the {len(frame)} steps of "
            f"the run {run.name}: one score per step is needed."
        )
    return values


Arm = tuple[list[Trace], list[Trace]]
"""Runs of one recipe: those that ended, and those that held."""


def ranking(name: str, traces: Sequence[Trace]) -> Ranking:
    """The performance of a detector with these traces."""
    arms = _mixed(traces)
    pooled = _auroc([_split(traces)])
    if not arms:
        return Ranking(name, None, None, None, pooled, (0, 0), None, (0, 0), None, None)
    limit = _limit(arms)
    ends = [(t.end or 0, t.first_over(limit)) for failures, _ in arms for t in failures]
    leads = [(end - step, end) for end, step in ends if step is not None and step < end]
    false = [t.first_over(limit) is not None for _, survivors in arms for t in survivors]
    rng = np.random.default_rng(0)
    samples = [
        [_sample(arms[k], rng) for k in rng.integers(len(arms), size=len(arms))]
        for _ in range(REPLICATES)
    ]
    return Ranking(
        name, _auroc(arms), _interval([_auroc(sample) for sample in samples]),
        _auroc(arms, 1.0 - AHEAD), pooled,
        (len(leads), len(ends)), _interval([_detection_rate(sample) for sample in samples]),
        (sum(false), len(false)),
        float(np.median([lead for lead, _ in leads])) if leads else None,
        float(np.median([lead / end for lead, end in leads])) if leads else None,
    )


def _split(traces: Sequence[Trace]) -> Arm:
    return [t for t in traces if t.end is not None], [t for t in traces if t.end is None]


def _mixed(traces: Sequence[Trace]) -> list[Arm]:
    """The arms with runs of both kinds."""
    names = dict.fromkeys(trace.arm for trace in traces)
    arms = [_split([t for t in traces if t.arm == name]) for name in names]
    return [(failures, survivors) for failures, survivors in arms if failures and survivors]


def _sample(arm: Arm, rng: np.random.Generator) -> Arm:
    """A bootstrap sample of the runs of each kind."""
    failures, survivors = ([group[i] for i in rng.integers(len(group), size=len(group))]
                           for group in arm)
    return failures, survivors


def _auroc(arms: Sequence[Arm], share: float = 1.0) -> float:
    """The share of pairs of runs of one arm in which the run that ended had the higher score before
    this share of its steps; ties count half."""
    wins, n = 0.0, 0
    for failures, survivors in arms:
        for t in failures:
            step = share * (t.end or 0)
            target, others = t.before(step), np.array([h.before(step) for h in survivors])
            wins += float((others < target).sum() + 0.5 * (others == target).sum())
            n += len(others)
    return wins / n


def _limit(arms: Sequence[Arm]) -> float:
    """The lowest limit that at most FALSE_SHARE of the runs that held pass."""
    highest = np.sort([t.highest[-1] for _, survivors in arms for t in survivors])[::-1]
    return float(highest[int(FALSE_SHARE * len(highest))])


def _detection_rate(arms: Sequence[Arm]) -> float:
    limit = _limit(arms)
    return fmean(t.before(t.end or 0) > limit for failures, _ in arms for t in failures)


def _interval(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.percentile(values, LEVEL)
    return float(low), float(high)


def _shuffled(traces: Sequence[Trace]) -> Ranking:
    """The median ranking, by AUROC, of SHUFFLES shuffles of the labels within each arm."""
    deals: list[tuple[float, int, list[Trace]]] = []
    for seed in range(SHUFFLES):
        rng = np.random.default_rng(seed)
        dealt = list(traces)
        for arm in dict.fromkeys(t.arm for t in traces):
            members = [i for i, t in enumerate(traces) if t.arm == arm]
            for i, j in zip(members, rng.permutation(members), strict=True):
                dealt[i] = replace(traces[i], end=traces[j].end)
        arms = _mixed(dealt)
        deals.append((_auroc(arms) if arms else 0.0, seed, dealt))
    return ranking(SHUFFLED, sorted(deals, key=lambda deal: deal[:2])[SHUFFLES // 2][2])
