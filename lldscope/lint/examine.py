"""Run every check on a run; report contradictions, and checks that the run cannot answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..run import Run
from .checks import CHECKS, Check, Parameters
from .declared import Setting, declared

EVIDENCE = 5  # rows shown of a finding
SECONDS = 120.0  # for one question


@dataclass(frozen=True)
class Finding:
    """Rows that contradict a check: how many, in which steps, and the first ones."""

    check: str
    asks: str
    effect: str
    rows: int
    first_step: int
    last_step: int
    evidence: list[dict[str, Any]]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """The result of `examine`. `passed` are checks without a contradiction; `unseen`: check that
    could not run → the missing columns; `declared` are checks that the configuration makes
    pointless."""

    findings: list[Finding]
    passed: list[str]
    unseen: dict[str, str]
    declared: list[str]


def examine(run: Run) -> Result:
    """Run every check. Nothing is executed again, and nothing is written."""
    settings = declared(run.info.get("config"))
    result = Result([], [], {}, [])
    for check in CHECKS:
        parameters = check.parameters(settings)
        if parameters is None:
            result.declared.append(check.id)
            continue
        ((n_seen,),) = run.rows(check.scope, SECONDS).rows
        if not n_seen:
            result.unseen[check.id] = check.needs
        elif finding := _finding(run, check, parameters, settings):
            result.findings.append(finding)
        else:
            result.passed.append(check.id)
    return result


def _finding(
    run: Run, check: Check, parameters: Parameters, settings: Mapping[str, Setting]
) -> Finding | None:
    faults = check.faults
    for name, value in parameters.items():
        faults = faults.replace("{" + name + "}", str(value))
    ((n, first, last),) = run.rows(
        f"SELECT count(*), min(step), max(step) FROM ({faults}\n)", SECONDS
    ).rows
    if not n:
        return None
    answer = run.rows(f"FROM ({faults}\n) ORDER BY ALL LIMIT {EVIDENCE}", SECONDS)
    evidence = [dict(zip(answer.names, row, strict=True)) for row in answer.rows]
    about = {s.name: s.value for fact in check.settings if (s := settings.get(fact)) is not None}
    return Finding(check.id, check.asks, check.effect, n, first, last, evidence, about)
