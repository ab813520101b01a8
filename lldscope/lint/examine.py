"""Ask a run every check, and say what contradicts and what could not be seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.schema import COMPONENT
from .checks import CHECKS
from .declared import Setting, declared, learning_rate

if TYPE_CHECKING:
    from ..run import Run

EVIDENCE = 5  # rows shown of a finding
SECONDS = 120.0  # for one question


@dataclass(frozen=True)
class Finding:
    """Rows that contradict a check: how many, in which steps, and the first of them."""

    check: str
    asks: str
    effect: str
    rows: int
    first_step: int
    last_step: int
    evidence: list[dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What `examine` found. `passed` are checks without a contradiction, `unseen` maps the others
    to what would have to be recorded, `declared` those that the configuration takes away."""

    findings: list[Finding]
    passed: list[str]
    unseen: dict[str, str]
    declared: list[str]


def examine(run: Run) -> Result:
    """Whether the rows of a run agree with its configuration and with each other; nothing is run
    again, and nothing is written."""
    settings = declared(run.info.get("config"))
    result = Result([], [], {}, [])
    for check in CHECKS:
        parameters = check.parameters(settings)
        if parameters is None:
            result.declared.append(check.id)
            continue
        faults = check.faults
        for name, value in parameters.items():
            faults = faults.replace("{" + name + "}", str(value))
        ((n_seen,),) = run.rows(check.scope, SECONDS).rows
        if not n_seen:
            result.unseen[check.id] = check.needs
        elif (finding := _finding(run, faults)) is None:
            result.passed.append(check.id)
        else:
            about = _by_name(settings, check.settings)
            result.findings.append(Finding(check.id, check.asks, check.effect, *finding, about))
    _learning_rate(run, settings, result)
    _reward_parts(run, settings, result)
    return result


def _finding(run: Run, faults: str) -> tuple[int, int, int, list[dict[str, Any]]] | None:
    ((rows, first, last),) = run.rows(
        f"SELECT count(*), min(step), max(step) FROM ({faults}\n)", SECONDS
    ).rows
    if not rows:
        return None
    answer = run.rows(f"FROM ({faults}\n) ORDER BY ALL LIMIT {EVIDENCE}", SECONDS)
    return rows, first, last, [dict(zip(answer.names, row, strict=True)) for row in answer.rows]


def _learning_rate(run: Run, settings: Mapping[str, Setting], result: Result) -> None:
    """Compared with the declared rate of the step itself and of its neighbours: trainers log the
    rate before or after the schedule's step."""
    answer = run.rows("SELECT step, lr FROM signals WHERE lr IS NOT NULL ORDER BY step")
    faults, n_known = [], 0
    for step, lr in answer.rows:
        rates = [learning_rate(settings, s) for s in (step - 1, step, step + 1)]
        declared_rates = [rate for rate in rates if rate is not None]
        if len(declared_rates) < 3:
            continue
        n_known += 1
        if not 0.98 * min(declared_rates) - 1e-12 <= lr <= 1.02 * max(declared_rates) + 1e-12:
            faults.append({"step": step, "lr": lr, "declared": declared_rates[1]})
    _add(
        result, "lr-schedule", "The learning rate follows its schedule.",
        "the optimizer does not have the settings of the configuration", faults,
        None if n_known else "steps.lr, and its schedule",
        _by_name(settings, ("lr", "schedule", "warmup")),
    )


def _reward_parts(run: Run, settings: Mapping[str, Setting], result: Result) -> None:
    """The mean reward as the weighted sum of its components."""
    answer = run.rows(
        "SELECT s.step, any_value(reward) AS reward, list(name ORDER BY name) AS names,"
        " list(value ORDER BY name) AS parts FROM scalars s JOIN signals USING (step)"
        f" WHERE starts_with(name, '{COMPONENT}') AND isfinite(value)"
        " AND isfinite(reward) GROUP BY s.step HAVING count(*) > 1 ORDER BY s.step"
    )
    about = ("reward_weights", "reward_functions")
    in_order, functions = (settings[n].value if n in settings else None for n in about)
    by_name: dict[str, float] = {}
    if isinstance(functions, list) and isinstance(in_order, list):
        by_name = dict(zip(map(str, functions), in_order, strict=False))
    faults, n_known = [], 0
    for step, reward, names, parts in answer.rows:
        weights = [by_name.get(name.removeprefix(COMPONENT)) for name in names]
        if in_order is None:
            weights = [1.0] * len(parts)
        if not all(isinstance(w, int | float) for w in weights):
            continue  # which weight is whose is not declared
        n_known += 1
        total = math.fsum(float(w or 0) * part for w, part in zip(weights, parts, strict=True))
        if abs(total - reward) > 0.01 * (1 + abs(reward)):
            values = dict(zip(names, parts, strict=True))
            faults.append({"step": step, "reward": reward, "sum": total, **values})
    needs = f"two or more scalars {COMPONENT}NAME, and reward_functions where weights are declared"
    _add(
        result, "reward-parts", "The parts of the reward add up to it.",
        "a part of the reward is lost, counted twice or weighted otherwise", faults,
        None if n_known else needs, _by_name(settings, about),
    )


def _add(
    result: Result, check: str, asks: str, effect: str, faults: list[dict[str, Any]],
    needs: str | None, about: dict[str, Any],
) -> None:
    if needs is not None:
        result.unseen[check] = needs
    elif not faults:
        result.passed.append(check)
    else:
        first, last = faults[0]["step"], faults[-1]["step"]
        finding = len(faults), first, last, faults[:EVIDENCE]
        result.findings.append(Finding(check, asks, effect, *finding, about))


def _by_name(settings: Mapping[str, Setting], facts: tuple[str, ...]) -> dict[str, Any]:
    """The values of what is declared of these facts, by the names of the trainer."""
    return {s.name: s.value for fact in facts if (s := settings.get(fact)) is not None}
