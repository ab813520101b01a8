"""Other scores, other bets and rival alarms, on the runs of a bank.

python -m benchmarks.candidates [BANK [development|test|all]]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import lldscope
from lldscope.diagnosis import decay_test as decay
from lldscope.diagnosis import detectors as d
from lldscope.diagnosis.assess import DEFAULT_ARL
from lldscope.evaluation.bank import LabelledRun, read_bank, rows_of_run
from lldscope.evaluation.scoring import EvaluatedRun, fall_of, score, wilson

from .rivals import BETS, RIVALS, Fires, column, mixture

BANK = Path(__file__).parents[1] / "sample_runs" / "bank"
BESIDE = ("displaced_share", "correct_deltas")  # columns of the study's bank
DELTAS = """
    SELECT step, list(delta) AS correct_deltas FROM response_likelihood
    WHERE correct AND mixed AND delta IS NOT NULL GROUP BY step
"""

Scored = Callable[[pd.DataFrame], d.Series]
Unit = Callable[[d.Series], float]


def delta(signals: pd.DataFrame) -> d.Series:
    return column(signals, "delta_correct")


def per_response(statistic: Callable[[d.Series], float]) -> Scored:
    """A statistic of the step's Δ, one per correct response; NaN where there is none."""

    def scorer(signals: pd.DataFrame) -> d.Series:
        rows = signals["correct_deltas"]
        return np.array([statistic(np.asarray(x)) if _some(x) else np.nan for x in rows])

    return scorer


def _some(values: object) -> bool:
    return isinstance(values, np.ndarray | list) and len(values) > 0


def largest_gain(rank: int, times: float) -> Unit:
    """So many times the gain of that rank, or the median size where gains are rarer."""
    return lambda past: times * max(sorted(past)[-rank], float(np.median(np.abs(past))))


def median_size(times: float) -> Unit:
    return lambda past: times * float(np.median(np.abs(past)))


SIMPLE = largest_gain(2, 2.5)


def capped(unit: Unit, loss: float, of: Scored = delta, window: int = 40) -> Scored:
    """−Δ in the unit that the last measured steps give, cut to [−1, loss]."""

    def scorer(signals: pd.DataFrame) -> d.Series:
        x = of(signals)
        rows = np.flatnonzero(np.isfinite(x))
        out = np.full(len(x), np.nan)
        for i, row in enumerate(rows[d.USUAL_LEAST :], d.USUAL_LEAST):
            bound = unit(x[rows[max(0, i - window) : i]])
            if bound > 0:
                out[row] = np.clip(-x[row] / bound, -1.0, loss)
        return out

    return scorer


def clipped(low: float, high: float) -> Callable[[d.Series], float]:
    return lambda x: float(np.clip(x, low, high).mean())


def _against_half(name: str) -> Scored:
    return lambda s: 2 * column(s, name) - 1


SCORES: dict[str, Scored] = {
    "used": lambda s: d.loss_score(delta(s)),
    "unit 2.5 × second gain of 40, losses to 5": capped(SIMPLE, 5),
    "the same, losses to 3": capped(SIMPLE, 3),
    "the same, losses like gains": capped(SIMPLE, 1),
    "unit 2 × second gain of 40, losses to 5": capped(largest_gain(2, 2), 5),
    "unit 2 × largest gain of 40, losses to 5": capped(largest_gain(1, 2), 5),
    "unit 4 × median size of 20, losses to 5": capped(median_size(4), 5, window=20),
    "unit 4 × median size of 20, losses like gains": capped(median_size(4), 1, window=20),
    "fixed scale: gains to 1 nat, losses to 5": lambda s: np.clip(-delta(s), -1, 5),
    "−tanh(mean / 0.5 nat)": lambda s: -np.tanh(delta(s) / 0.5),
    "−tanh(mean / 2 nats)": lambda s: -np.tanh(delta(s) / 2),
    "−tanh(sum / √n / 0.5 nat)": per_response(lambda x: -np.tanh(x.sum() / np.sqrt(len(x)) / 0.5)),
    "−mean tanh(Δ / 0.5 nat)": per_response(lambda x: -np.tanh(x / 0.5).mean()),
    "mean of Δ cut to ±1 nat": per_response(lambda x: -clipped(-1, 1)(x)),
    "the same, in that unit": capped(SIMPLE, 5, per_response(clipped(-1, 1))),
    "mean of Δ cut to −5…1 nat": per_response(lambda x: -clipped(-5, 1)(x)),
    "median Δ, in that unit": capped(SIMPLE, 5, per_response(lambda x: float(np.median(x)))),
    "sum of Δ / √n, in that unit": capped(
        SIMPLE, 5, per_response(lambda x: x.sum() / np.sqrt(len(x)))
    ),
    "sign of the mean": lambda s: -np.sign(delta(s)),
    "share of responses that lose, against ½": _against_half("lld_share"),
    "share of questions that lose, against ½": _against_half("displaced_share"),
}


def alarms() -> Iterator[tuple[str, Fires]]:
    for name, scorer in SCORES.items():
        yield name, lambda s, arl, scorer=scorer: mixture(scorer(s), arl)
    for name, detect in BETS.items():
        yield name, lambda s, arl, detect=detect: detect(d.loss_score(delta(s)), arl)
    yield from RIVALS.items()


def starts(fires: np.ndarray, step: np.ndarray) -> list[int]:
    """Steps at which an alarm begins; it ends after 20 quiet steps, as the rules do."""
    steps: list[int] = []
    last = -21
    for t in np.flatnonzero(fires):
        if t - last > 20:
            steps.append(int(step[t]))
        last = t
    return steps


def frame(run: LabelledRun) -> pd.DataFrame:
    """Signals, and what the study keeps beside them."""
    signals = run.signals()
    if run.path.is_dir():
        with lldscope.open_run(run.path) as reader:
            beside = reader.sql(DELTAS)
    else:
        stored = rows_of_run(run.path, run.name)
        beside = stored[["step", *(name for name in BESIDE if name in stored)]]
    columns = [name for name in beside if name == "step" or name not in signals]
    frame = signals.merge(beside[columns], "left", "step")
    return frame.reindex(columns=list(dict.fromkeys([*frame.columns, *BESIDE])))


def compare(bank: Path = BANK, split: Any = "development", arl: float = DEFAULT_ARL) -> None:
    """One line per alarm; declined runs and runs with faults are counted, not judged."""
    runs = read_bank(bank, split) if (bank / "index.jsonl").is_file() else []
    print(f"\ncandidates on {bank} ({split}): {len(runs)} runs, A = {arl:g}")
    if not runs:
        print("no runs yet: python -m study run makes them")
        return
    frames = {run.name: frame(run) for run in runs}
    falls = [_largest_fall(frames[run.name]) for run in runs if run.label == "held"]
    head = (
        "collapses warned of",
        "lead: median, 10 %, range",
        "falls warned of",
        "declined",
        "held",
    )
    print(f"{'':52}" + "".join(f"{name:>32}" for name in (*head, "false alarms/1000 steps")))
    fallen = {run.name: fall_of(run, frames[run.name]) for run in runs}
    for name, fires in alarms():
        judged = [
            EvaluatedRun(
                run,
                len(f := frames[run.name]),
                {name: starts(fires(f, arl), f["step"].to_numpy())},
                fallen[run.name],
            )
            for run in runs
        ]
        row = score(judged, [name])[0]
        cells = [
            share_cell(row["warned"]),
            lead_cell(row),
            fall_cell(row),
            *(share_cell(row["fired"].get(label, [0, 0])) for label in ("declined", "held")),
            rate_cell(row),
        ]
        print(f"{name:52}" + "".join(f"{cell:>32}" for cell in cells))
    if falls:
        print(f"largest fall of the level in runs that held: {max(falls):.0%} of its size")


def share_cell(counts: list[int]) -> str:
    k, n = counts
    low, high = wilson(k, n)
    return f"{k} of {n} ({100 * low:.0f}–{100 * high:.0f} %)" if n else "–"


def lead_cell(row: dict[str, Any]) -> str:
    if row["lead_median"] is None:
        return "–"
    first, last = row["lead_range"]
    return f"{row['lead_median']:.0f}, {row['lead_p10']:.0f}, {first}–{last}"


def fall_cell(row: dict[str, Any]) -> str:
    share = row["fall_lead_share_median"]
    before = "" if share is None else f", {100 * share:.0f} % before"
    return share_cell(row["warned_of_fall"]) + before


def rate_cell(row: dict[str, Any]) -> str:
    low, high = row["false_alarms_per_1000_healthy_steps_interval"]
    rate = row["false_alarms_per_1000_healthy_steps"]
    return f"{rate:.2f} ({low:.2f}–{high:.2f})" if rate == rate else "–"


def _largest_fall(signals: pd.DataFrame) -> float:
    level = column(signals, "correct_logp")
    values = level[np.isfinite(level)]
    if len(values) < decay.BASELINE:
        return 0.0
    mean = d.trailing_mean(values, decay.SMOOTH, decay.SMOOTH)
    fall = np.fmax.accumulate(mean) - mean
    return float(np.nanmax(fall) / abs(np.median(values[: decay.BASELINE])))


if __name__ == "__main__":
    compare(*map(Path, sys.argv[1:2]), *sys.argv[2:3])  # type: ignore[arg-type]
