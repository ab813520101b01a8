"""Faults written into logs of healthy runs at random steps: how many are found, and how late.

python -m benchmarks faults

Logs: runs of the alarm bank that held, with all that lldscope records, and reduced to five signals;
the same with a row every ten steps; and made-up healthy logs (`healthy`) in the formats of TRL and
verl, which are imported as `lldscope check` would. Recorded logs are continued at their last level,
with the noise of their last steps, so that there is room for a fault.

A fault counts as found where an alarm begins in the log with it, at its first step or later, that
does not begin at the same step of the log without it. Printed: in how many logs a critical alarm
does, in how many one of at least a warning, and the median delay of that in steps; first of each
kind the untouched logs with any alarm. Beside it stand other packages, where they are installed
(`python -m benchmarks rivals` installs them).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import lldscope
from lldscope.core.schema import SIGNALS
from lldscope.evaluation.bank import LabelledRun, read_bank
from lldscope.importers.build import Import
from lldscope.importers.source import ImportRequest

from . import healthy
from .noise import FOREIGN, Signals, foreign
from .rival_packages import ALARM_BANK, Verdict, Verdicts

LOGS = 20  # of each kind
SPREAD = 3  # every third run of the bank that held
STEPS, LONG = 300, 600  # of a log; LONG for what takes 250 steps
ONSETS = (60, 160)
EVERY = 10
SPARSE_STEPS, SPARSE_ONSETS = 800, (250, 400)
NOISE_ROWS = 50  # whose noise continues a log
BLOCK = 10  # neighbouring rows that stay together in that
REWARDS = ("reward", "success", "reward_sd")

Inject = Callable[[Signals, np.ndarray], dict[str, np.ndarray]]  # changed columns


@dataclass(frozen=True)
class Fault:
    """What happens to the columns of a log. `inject` is given the steps since the onset, negative
    before it; the log must have the signal `needs`."""

    needs: str
    inject: Inject
    slow: bool = False


def share(elapsed: np.ndarray, steps: int) -> np.ndarray:
    """0 before the onset, 1 once it is complete, after `steps`."""
    return np.clip((elapsed + 1) / steps, 0, 1)


def times(names: Sequence[str], factor: float, steps: int = 1) -> Inject:
    return lambda log, elapsed: {
        name: log[name].to_numpy(float) * (1 + (factor - 1) * share(elapsed, steps))
        for name in names
    }


def to(name: str, level: float, steps: int = 1) -> Inject:
    """To a level, around which the signal keeps its relative noise."""

    def inject(log: Signals, elapsed: np.ndarray) -> dict[str, np.ndarray]:
        values = log[name].to_numpy(float)
        moved = level * values / np.nanmedian(values)
        return {name: values + (moved - values) * share(elapsed, steps)}

    return inject


def longer(log: Signals, elapsed: np.ndarray, *, cut: bool) -> dict[str, np.ndarray]:
    """Responses four times as long, and 60 % of them cut, where the log says how many are."""
    truncated = 0.01 + 0.6 * share(elapsed, 20) if cut else np.full(len(log), np.nan)
    return {**times(["response_tokens"], 4, 20)(log, elapsed), "truncated_share": truncated}


def not_finite(log: Signals, elapsed: np.ndarray) -> dict[str, np.ndarray]:
    """The norm is NaN in every step; the view `signals` counts it, as it does of a recorded run."""
    after = elapsed >= 0
    norm = np.where(after, np.nan, log["grad_norm"].to_numpy(float))
    return {"grad_norm": norm, "n_nonfinite": np.where(after, 1.0, 0.0)}


def outage(log: Signals, elapsed: np.ndarray) -> dict[str, np.ndarray]:
    """Something the answers depend on is gone from one step to the next."""
    changed = times(REWARDS, 0.5)(log, elapsed)
    return {**changed, **times(["response_tokens"], 0.6)(log, elapsed)}


FAULTS: dict[str, Fault] = {
    "reward to a third over 20 steps": Fault("reward", times(REWARDS, 1 / 3, 20)),
    "reward to nothing at once": Fault("reward", times(REWARDS, 0)),
    "reward down a third over 250 steps": Fault("reward", times(REWARDS, 2 / 3, 250), slow=True),
    "entropy × 5": Fault("entropy", times(["entropy"], 5, 10)),
    "entropy to 0.02": Fault("entropy", to("entropy", 0.02, 10)),
    "gradient × 10": Fault("grad_norm", times(["grad_norm"], 10)),
    "gradient × 0.001": Fault("grad_norm", times(["grad_norm"], 1e-3)),
    "KL × 50": Fault("kl", times(["kl"], 50, 10)),
    "length to a quarter": Fault("response_tokens", times(["response_tokens"], 0.25, 20)),
    "length × 4, cut": Fault("response_tokens", lambda s, e: longer(s, e, cut=True)),
    "length × 4, no word of a cut": Fault("response_tokens", lambda s, e: longer(s, e, cut=False)),
    "tools to 0": Fault("valid_searches", times(["valid_searches"], 0, 5)),
    "NaN": Fault("grad_norm", not_finite),
    "outage: reward × 0.5, length × 0.6 at once": Fault("response_tokens", outage),
}


# -- logs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """How the logs of a kind are made of healthy ones with a row a step: of which of its signals,
    and, in `read`, as what is left after writing and reading them."""

    names: Collection[str]
    read: Callable[[Signals], Signals]
    recorded: bool = True  # in the alarm bank; made up where not
    steps: int = STEPS
    onsets: tuple[int, int] = ONSETS


def continued(signals: Signals, steps: int, rng: np.random.Generator) -> Signals:
    """A log of so many rows: what it has, and then its last level with the noise of its last rows,
    drawn in blocks, their straight line taken out."""
    last = signals.iloc[-NOISE_ROWS:].reset_index(drop=True)
    missing = steps - len(signals)
    starts = rng.integers(0, len(last) - BLOCK + 1, -(-missing // BLOCK))
    rows = (starts[:, None] + np.arange(BLOCK)).ravel()[:missing]
    columns = {}
    x = np.arange(len(last))
    for name in signals:
        values = last[name].to_numpy(float)
        mask = np.isfinite(values)
        if mask.sum() > 2:
            slope, _ = np.polyfit(x[mask], values[mask], 1)
            level = np.clip(values + slope * (x[-1] - x), values[mask].min(), values[mask].max())
            values = np.where(mask, level, np.nan)
        columns[name] = np.concatenate([signals[name].to_numpy(float), values[rows]])
    return healthy.frame({**columns, "step": np.arange(steps)})


VERL = {
    "reward": "critic/score/mean", "entropy": "actor/entropy", "grad_norm": "actor/grad_norm",
    "kl": "actor/kl_loss", "response_tokens": "response_length/mean",
    "truncated_share": "response_length/clip_ratio", "valid_searches": "tool_call_counts/mean",
}
TRL = {
    "reward": "reward", "entropy": "entropy", "grad_norm": "grad_norm", "kl": "kl",
    "response_tokens": "completions/mean_length", "truncated_share": "completions/clipped_ratio",
}


def imported(names: dict[str, str]) -> Callable[[Signals], Signals]:
    """Write a log with these names, in the format of their trainer, and read it by an import."""

    def rows(signals: Signals) -> Iterator[dict[str, float]]:
        unknown = {name for name in names if signals[name].isna().all()}
        for row in signals.to_dict("records"):
            yield {
                "step": int(row["step"]) + 1,
                **{theirs: row[ours] for ours, theirs in names.items() if ours not in unknown},
            }

    def read(signals: Signals) -> Signals:
        with tempfile.TemporaryDirectory() as folder:
            if names is VERL:
                log = Path(folder) / "metrics.jsonl"
                lines = ({"step": row.pop("step"), "data": row} for row in rows(signals))
                log.write_text("".join(json.dumps(line) + "\n" for line in lines))
            else:
                log = Path(folder) / "trainer_state.json"
                state = {"global_step": len(signals), "max_steps": len(signals)}
                log.write_text(json.dumps({**state, "log_history": list(rows(signals))}))
            run = Path(folder) / "run"
            Import([log], run, ImportRequest(), None).build(lambda n: None)
            with lldscope.open_run(run) as reader:
                table = reader.signals()
        return table.assign(step=table["step"] - 1)

    return read


def five(signals: Signals) -> Signals:
    """The signals of other trainers' logs, with the cut and the non-finite numbers, if any."""
    more = {name: signals[name] for name in ("truncated_share", "n_nonfinite")}
    return foreign(signals).assign(**more)


def sparse(signals: Signals) -> Signals:
    return five(signals).iloc[EVERY - 1 :: EVERY].reset_index(drop=True)


READERS: dict[str, Reader] = {
    "recorded": Reader(SIGNALS.names, lambda s: s),
    "five signals": Reader(FOREIGN, five),
    "a row every ten steps": Reader(FOREIGN, sparse, steps=SPARSE_STEPS, onsets=SPARSE_ONSETS),
    "verl": Reader(VERL, imported(VERL), recorded=False),
    "TRL": Reader(TRL, imported(TRL), recorded=False),
}


@cache
def healthy_log(recorded: bool, steps: int, seed: int) -> Signals:
    if recorded:
        runs = held_runs()
        signals = runs[seed * SPREAD % len(runs)].signals().assign(eval_score=np.nan)
        return continued(signals, steps, np.random.default_rng(seed))
    return healthy.made_up(["256 rollouts", "64 rollouts"][seed % 2], steps, seed)


@cache
def held_runs() -> list[LabelledRun]:
    return [run for run in read_bank(ALARM_BANK) if run.label == "held"]


# -- the table ------------------------------------------------------------------------------------


def injected(signals: Signals, onset: int, fault: Fault) -> Signals:
    elapsed = signals["step"].to_numpy() - onset
    return signals.assign(**fault.inject(signals, elapsed))


def delay(untouched: Verdict, faulty: Verdict, onset: int, level: str) -> int | None:
    """Steps from the onset to the first alarm of this level that is not in the untouched log."""
    steps = [
        step
        for name, at, step in set(map(tuple, faulty.events)) - set(map(tuple, untouched.events))
        if at == level and step is not None and step >= onset
    ]
    return min(steps) - onset if steps else None


@dataclass(frozen=True)
class Result:
    """One detector and fault over the logs of a kind: each delay, None where it was not found."""

    warning: list[int | None]
    critical: list[int | None]

    @property
    def total(self) -> int:
        return len(self.warning)

    @property
    def delays(self) -> list[int]:
        return [x for x in self.warning if x is not None]

    @property
    def hits(self) -> int:
        return len(self.delays)

    def __str__(self) -> str:
        critical = sum(x is not None for x in self.critical)
        late = f"{np.median(self.delays):.0f}" if self.hits else "–"
        return f"{critical} / {self.hits} of {self.total}, {late}"


def untouched(kind: str, slow: bool, logs: int) -> list[Verdicts]:
    """Verdicts on the logs of a kind as they are."""
    key = (kind, slow, logs)
    if key not in _UNTOUCHED:
        reader = READERS[kind]
        _UNTOUCHED[key] = healthy.judge([reader.read(s) for s in _logs(reader, slow, logs)])
    return _UNTOUCHED[key]


_UNTOUCHED: dict[tuple[str, bool, int], list[Verdicts]] = {}


def _logs(reader: Reader, slow: bool, logs: int) -> list[Signals]:
    steps = max(reader.steps, LONG if slow else 0)
    return [healthy_log(reader.recorded, steps, seed) for seed in range(logs)]


def measure(kind: str, name: str, logs: int = LOGS) -> dict[str, Result]:
    """By detector; empty where logs of this kind do not have the signal."""
    reader, fault = READERS[kind], FAULTS[name]
    signals = _logs(reader, fault.slow, logs)
    if fault.needs not in reader.names or signals[0][fault.needs].isna().all():
        return {}
    number = list(FAULTS).index(name)
    onsets = [
        int(np.random.default_rng([number, seed]).integers(*reader.onsets)) for seed in range(logs)
    ]
    after = healthy.judge(
        [reader.read(injected(s, at, fault)) for s, at in zip(signals, onsets, strict=True)]
    )
    triples = list(zip(untouched(kind, fault.slow, logs), after, onsets, strict=True))
    return {
        detector: Result(
            *(
                [
                    delay(before[detector], verdicts[detector], at, level)
                    for before, verdicts, at in triples
                ]
                for level in ("warning", "critical")
            )
        )
        for detector in after[0]
    }


def main(logs: int = LOGS) -> None:
    print("critical / warning or worse of all logs, median delay in steps")
    for kind in READERS:
        print(f"\n{kind}")
        before = untouched(kind, False, logs)
        cells = [
            f"{detector} {healthy.count(before, detector)} of {logs}" for detector in before[0]
        ]
        print(f"  {'untouched':46}{';  '.join(cells)}", flush=True)
        for name in FAULTS:
            cells = [f"{detector} {r}" for detector, r in measure(kind, name, logs).items()]
            print(f"  {name:46}{';  '.join(cells) or '–'}", flush=True)
