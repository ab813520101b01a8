"""Other packages judge logs, in an environment of their own: `rival_packages` starts this script.

It reads a JSON list of logs from standard input, each with the columns of ROW as lists, null where
nothing was logged, and prints a JSON list with the verdicts of each detector on each log. Nothing
of the project is imported.

A verdict has the step of the first alarm at each level or worse, null where a package judges a
finished log and does not say when it would have known; the names of the alarms; and all of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

ROW = ("step", "reward", "entropy", "grad_norm", "kl", "response_tokens")
EVERY = 25  # steps between two diagnoses during training: rlprobe's and rldoctor's default for TRL

Row = dict[str, float]
Verdict = dict[str, Any]  # first: level → step; alarms: names; events: (name, level, step)
Alarm = tuple[str, str, int | None]  # name, severity, step

LEVELS = {"critical": ("critical", "warning"), "warning": ("warning",), "warn": ("warning",)}


def rows(log: dict[str, list[float | None]]) -> list[Row]:
    """One dictionary a step, without what was not logged."""
    steps = range(len(log["step"]))
    return [{n: log[n][i] for n in ROW if log[n][i] is not None} for i in steps]


def renamed(row: Row, names: dict[str, str]) -> Row:
    return {names[name]: value for name, value in row.items() if name in names}


def verdict(alarms: Iterable[Alarm]) -> Verdict:
    """From alarms in the order of their steps. Severities other than LEVELS are no alarms."""
    first: dict[str, int | None] = {}
    events = [
        (name, level, step)
        for name, severity, step in alarms
        for level in LEVELS.get(severity.lower(), ())
    ]
    for _, level, step in events:
        first.setdefault(level, step)
    return {"first": first, "alarms": sorted({name for name, *_ in events}), "events": events}


# -- the packages, at their defaults --------------------------------------------------------------


def rlprobe(log: list[Row]) -> dict[str, Verdict]:
    """`rlprobe doctor` on the finished log, and what its TRL callback does every 25 steps."""
    from rlprobe.doctor.engine import diagnose_view
    from rlprobe.doctor.runview import RunView
    from rlprobe.schemas import RunManifest, StepRecord

    manifest = RunManifest(run_id="log", created_at="2026-01-01T00:00:00Z", algorithm="grpo")
    names = {
        "step": "step",
        "reward": "reward_mean",
        "entropy": "entropy_mean",
        "grad_norm": "grad_norm",
        "kl": "kl_mean",
        "response_tokens": "completion_len_mean",
    }
    records = [StepRecord(**renamed(row, names)) for row in log]

    def alarms(n: int, step: int | None) -> list[Alarm]:
        findings = diagnose_view(RunView(manifest, records[:n]))
        return [(f.signature_id, f.severity, step) for f in findings]

    rounds = range(EVERY, len(records) + 1, EVERY)
    return {
        "rlprobe, finished log": verdict(alarms(len(records), None)),
        "rlprobe, during training": verdict(
            alarm for n in rounds for alarm in alarms(n, records[n - 1].step)
        ),
    }


def rldoctor(log: list[Row]) -> dict[str, Verdict]:
    """`rl-doctor diagnose` on the finished log, and its live monitor."""
    from rl_doctor import diagnose, run_from_records
    from rl_doctor.live import LiveMonitor

    names = {
        "step": "step",
        "reward": "reward",
        "entropy": "entropy",
        "grad_norm": "grad_norm",
        "kl": "kl",
        "response_tokens": "completions/mean_length",
    }
    records = [renamed(row, names) for row in log]
    finished = diagnose(run_from_records(records)).problems

    def live(skip: tuple[str, ...] = ()) -> Verdict:
        monitor = LiveMonitor(on_finding=lambda finding: None, skip=skip)
        findings = ((f, row["step"]) for row in records for f in monitor.log(row))
        return verdict((f.detector, f.severity.name, step) for f, step in findings)

    return {
        "rldoctor, finished log": verdict((f.detector, f.severity.name, None) for f in finished),
        "rldoctor, during training": live(),
        # A plateau is no failure: a run that has learned all it can has one.
        "rldoctor, without plateau": live(skip=("plateau",)),
    }


def rlwatch(log: list[Row]) -> dict[str, Verdict]:
    """Its detectors, which see one step after the other; without what stores and sends alarms."""
    from rlwatch.config import RLWatchConfig
    from rlwatch.detectors import DetectorSuite

    names = {
        "step": "step",
        "reward": "reward_mean",
        "entropy": "entropy",
        "grad_norm": "grad_norm",
        "kl": "kl_divergence",
    }

    def judged(names: dict[str, str]) -> Verdict:
        suite = DetectorSuite(RLWatchConfig())
        alarms = (a for row in log for a in suite.check_step(**renamed(row, names)))
        return verdict((a.detector, a.severity, a.step) for a in alarms)

    # Entropy under 1 nat for 50 steps is critical by default; many policies never have more.
    without = {name: theirs for name, theirs in names.items() if name != "entropy"}
    return {
        "rlwatch, during training": judged(names),
        "rlwatch, without entropy": judged(without),
    }


def judge(log: dict[str, list[Any]]) -> dict[str, Verdict]:
    steps = rows(log)
    return {**rlprobe(steps), **rldoctor(steps), **rlwatch(steps)}


if __name__ == "__main__":
    json.dump([judge(log) for log in json.load(sys.stdin)], sys.stdout)
