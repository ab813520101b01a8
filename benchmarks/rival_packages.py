"""Alarms of other packages and simple rules beside lldscope's, on the same logs: two tables.

The packages are installed into .envs/rivals, where `rival_worker.py` judges the logs at their
defaults. The logs are runs reduced to the five signals that logs of other trainers have, and the
same with the noise of 32 rollouts a step: for the first table those of the alarm bank, which
degraded or held by their held-out score; for the second the test runs of the older bank, whose
reward fell or held, and beside them made-up healthy logs (`noise`).

Found and false count alarms at any step; the lead is the step of the degradation or fall less that
of the first alarm, negative where it came after. Below the tables: what fired in logs without one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lldscope.diagnosis.assess import DEFAULT_ARL, assess
from lldscope.diagnosis.rule import Severity

from .noise import BANK, CONDITIONS, FOREIGN, HEALTHY, Signals, foreign, healthy, labelled, words
from .rivals import RIVALS, level_cusum, level_only

ROOT = Path(__file__).parents[1]
ALARM_BANK = ROOT / "sample_runs" / "alarm_bank"
WORKER = Path(__file__).with_name("rival_worker.py")
ENVIRONMENT = Path(".envs") / "rivals"
PACKAGES = ("rlprobe==0.1.0", "rldoctor==0.2.0", "rlwatch==0.5.1")

HELD_OUT, HELD_OUT_NOISY = "by held-out score", "by held-out score, 32 rollouts"
RECORDED, NOISY, MADE_UP = "as recorded", "32 rollouts", "made up"
SEEDS = 5  # made-up logs of each kind

LEVELS = {"critical": Severity.CRITICAL, "warning": Severity.WARNING}  # and worse
SIMPLE = {n: f for n, f in RIVALS.items() if f not in (level_only, level_cusum)}


@dataclass(frozen=True)
class Log:
    """A log to judge: the step at which its reward fell or its held-out score degraded, None if it
    is healthy, and all that lldscope recorded of it, where that is more."""

    group: str
    signals: Signals
    fall: int | None = None
    recorded: Signals | None = None


@dataclass(frozen=True)
class Verdict:
    """Of one detector on one log: the step of the first alarm at each level or worse, None where it
    judged the finished log; the names of its alarms; and each alarm as name, level (also under the
    less bad levels) and step."""

    first: dict[str, int | None]
    alarms: Sequence[str] = ()
    events: Sequence[tuple[str, str, int | None]] = ()


Verdicts = dict[str, Verdict]  # by detector


def logs(bank: Path = BANK, alarm_bank: Path = ALARM_BANK) -> Iterator[Log]:
    yield from _of_bank(alarm_bank, "all", HELD_OUT, HELD_OUT_NOISY)
    yield from _of_bank(bank, "test", RECORDED, NOISY)
    for kind in HEALTHY.values():
        for seed in range(SEEDS):
            yield Log(MADE_UP, healthy(*kind)(np.random.default_rng([7, seed])))


def _of_bank(bank: Path, split: str, group: str, noisy: str) -> Iterator[Log]:
    for number, (fall, signals) in enumerate(labelled(bank, split)):
        yield Log(group, foreign(signals), fall, signals)
        thinned = CONDITIONS["32 rollouts"](signals, np.random.default_rng([number, 0]))
        yield Log(noisy, thinned, fall)


# -- verdicts -------------------------------------------------------------------------------------


def python_if_installed() -> Path | None:
    """The interpreter of the environment of PACKAGES, if that is there."""
    ready = ROOT / ENVIRONMENT / ".ready"
    if not ready.exists() or ready.read_text().split() != list(PACKAGES):
        return None
    return ROOT / ENVIRONMENT / "bin" / "python"


def python_of_packages() -> Path:
    """The interpreter of the environment of PACKAGES, which is made if it is not there."""
    if python_if_installed() is None:
        install = [sys.executable, ".ci/environment.py", "install", ENVIRONMENT, "constraints.txt"]
        subprocess.run([*install, "", *PACKAGES], cwd=ROOT, check=True)
        (ROOT / ENVIRONMENT / ".ready").write_text("\n".join(PACKAGES))
    return ROOT / ENVIRONMENT / "bin" / "python"


def columns(signals: Signals) -> dict[str, list[float | None]]:
    """A log as the worker reads it: NaN, which is not logged, as None."""
    table = signals[["step", *FOREIGN]].astype(object)
    return {name: [None if x != x else x for x in table[name]] for name in table}


def packages(python: Path, judged: Sequence[Signals]) -> list[Verdicts]:
    """Verdicts of the packages on each log."""
    done = subprocess.run(
        [python, "-I", WORKER], input=json.dumps([columns(signals) for signals in judged]),
        stdout=subprocess.PIPE, text=True, check=True,
    )
    return [
        {name: Verdict(**verdict) for name, verdict in verdicts.items()}
        for verdicts in json.loads(done.stdout)
    ]


def simple(log: Log) -> Verdicts:
    """Verdicts of the simple rules, which have one level: a warning."""
    verdicts: Verdicts = {}
    for name, fires in SIMPLE.items():
        rows = np.flatnonzero(fires(log.signals, DEFAULT_ARL))
        first = {"warning": int(log.signals["step"].iloc[rows[0]])} if len(rows) else {}
        verdicts[name] = Verdict(first)
    return verdicts


def ours(log: Log) -> Verdicts:
    verdicts = {"lldscope, five signals": assessed(log.signals)}
    if log.recorded is not None:
        trained = log.recorded.assign(eval_score=np.nan)
        verdicts["lldscope, all but the held-out score"] = assessed(trained)
        verdicts["lldscope, all it records"] = assessed(log.recorded)
    return verdicts


def assessed(signals: Signals) -> Verdict:
    alerts = [a for a in assess(signals).alerts if a.severity >= min(LEVELS.values())]
    events = [
        (a.rule, level, start)
        for a in alerts
        for level, least in LEVELS.items()
        if a.severity >= least
        for start, _ in a.episodes
    ]
    first = {level: min(t for _, at, t in events if at == level) for _, level, _ in events}
    return Verdict(first, [a.rule for a in alerts], events)


# -- the table ------------------------------------------------------------------------------------

Judged = list[tuple[Log, Verdict]]
Cell = Callable[[Judged, str], int | None]


def reached(judged: Judged, level: str) -> int:
    return sum(level in verdict.first for _, verdict in judged)


def leads(judged: Judged, level: str) -> list[int]:
    """Steps from the first alarm to the fall, negative where it came after."""
    return [
        log.fall - step
        for log, verdict in judged
        if log.fall is not None and (step := verdict.first.get(level)) is not None
    ]


def before(judged: Judged, level: str) -> int | None:
    dated = leads(judged, level)
    return sum(lead > 0 for lead in dated) if dated or not reached(judged, level) else None


def median_lead(judged: Judged, level: str) -> int | None:
    dated = leads(judged, level)
    return round(float(np.median(dated))) if dated else None


@dataclass(frozen=True)
class Column:
    """What one detector did on the logs of a group that fell, or that did not."""

    heading: str  # with the number of logs as n
    group: str
    fell: bool
    count: Cell

    def has(self, log: Log) -> bool:
        return log.group == self.group and (log.fall is not None) == self.fell


def _recorded_and_noisy(kind: str, before_it: str, group: str, noisy: str) -> tuple[Column, ...]:
    return (
        Column(f"{{n}} {kind}: found", group, True, reached),
        Column(before_it, group, True, before),
        Column("median lead", group, True, median_lead),
        Column("{n} held: false", group, False, reached),
        Column("32 rollouts: found", noisy, True, reached),
        Column(before_it, noisy, True, before),
        Column("median lead", noisy, True, median_lead),
        Column("false", noisy, False, reached),
    )


BY_HELD_OUT = _recorded_and_noisy("degraded", "before", HELD_OUT, HELD_OUT_NOISY)
BY_REWARD = (
    *_recorded_and_noisy("falls", "before the fall", RECORDED, NOISY),
    Column("{n} made up: false", MADE_UP, False, reached),
)


def table(judged: Sequence[tuple[Log, Verdicts]], columns: Sequence[Column]) -> str:
    """Markdown: a row per detector, in each cell critical / warning or worse."""
    rows = [["critical / warning or worse"], ["---"]]
    for column in columns:
        rows[0].append(column.heading.format(n=sum(column.has(log) for log, _ in judged)))
        rows[1].append("---")
    for name in dict.fromkeys(name for _, verdicts in judged for name in verdicts):
        row = [name]
        for column in columns:
            mine = [(log, v[name]) for log, v in judged if column.has(log) and name in v]
            levels = ["warning"] if name in SIMPLE else list(LEVELS)
            values = [column.count(mine, level) for level in levels] if mine else [None]
            row.append(" / ".join("–" if v is None else str(v) for v in values))
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def false_alarms(judged: Sequence[tuple[Log, Verdicts]], group: str) -> Iterator[str]:
    """Of each detector that names its alarms: in how many logs without a fall each fired."""
    alarms: dict[str, dict[str, int]] = {}
    for log, verdicts in judged:
        if log.group == group and log.fall is None:
            for name, verdict in verdicts.items():
                for alarm in verdict.alarms:
                    counts = alarms.setdefault(name, {})
                    counts[alarm] = counts.get(alarm, 0) + 1
    yield from (f"{name}: {words(counts)}" for name, counts in alarms.items())


def main(bank: Path = BANK, alarm_bank: Path = ALARM_BANK) -> None:
    python = python_of_packages()
    cases = list(logs(bank, alarm_bank))
    theirs = packages(python, [log.signals for log in cases])
    judged = [
        (log, {**verdicts, **simple(log), **ours(log)})
        for log, verdicts in zip(cases, theirs, strict=True)
    ]
    print(", ".join(PACKAGES))
    print(f"\n{table(judged, BY_HELD_OUT)}\n\n{table(judged, BY_REWARD)}")
    for group in (HELD_OUT, HELD_OUT_NOISY, RECORDED, NOISY, MADE_UP):
        print(f"\nwithout a fall, {group}:", *false_alarms(judged, group), sep="\n  ")
