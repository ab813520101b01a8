"""Cases for rules: made-up series in which a rule must fire, or must not.

Each signal is a list of [step, value] points joined by lines, plus normal noise (`noise`, standard
deviation) drawn for each of a few seeds. `fires` gives the earliest and latest step at which a rule
may first fire, `quiet` the rules that must not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.schema import SIGNALS
from ..diagnosis.assess import assess
from ..diagnosis.rule import Rule
from .rule_sql import Expressions

if TYPE_CHECKING:
    import pandas as pd

SEEDS = range(3)
CUTS = 10  # prefixes of a run on which a rule must give the same answers as on all of it


@dataclass(frozen=True)
class Case:
    """A made-up run and what must fire in it."""

    name: str
    signals: dict[str, list[list[float]]]
    noise: dict[str, float] = field(default_factory=dict)
    fires: dict[str, list[int]] = field(default_factory=dict)
    quiet: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """One expectation of a case, what happened with each seed, and whether it was met."""

    rule: str
    where: str
    expected: str
    found: str
    passed: bool


def frame(columns: dict[str, Any]) -> pd.DataFrame:
    """A frame like `signals` with the given columns, shape (steps,); all others are NaN."""
    import pandas as pd

    length = len(next(iter(columns.values())))
    empty = {name: np.full(length, np.nan) for name in SIGNALS.names}
    table = pd.DataFrame({**empty, "step": np.arange(length), **columns})
    if "delta_correct" in columns and "n_delta_correct" not in columns:
        table["n_delta_correct"] = np.where(table["delta_correct"].isna(), 0, 10)
        table["delta_correct_sum"] = table["delta_correct"] * 10
    return table


def drawn(case: Case, seed: int) -> pd.DataFrame:
    """The signals of a case with the noise of a seed."""
    rng = np.random.default_rng(seed)
    end = max(point[0] for points in case.signals.values() for point in points)
    steps = np.arange(int(end) + 1)
    columns = {}
    for name, points in case.signals.items():
        at, values = np.array(points, dtype=float).T
        line = np.interp(steps, at, values)
        columns[name] = line + rng.normal(0, case.noise.get(name, 0.0), len(steps))
    return frame(columns)


def results(case: Case, rules: Sequence[Rule]) -> list[Result]:
    """Whether the rules meet the expectations of a case, with every seed."""
    first: list[dict[str, int]] = []
    for seed in SEEDS:
        alerts = assess(drawn(case, seed), rules=rules).alerts
        first.append({a.rule: fired for a in alerts for fired, _ in a.episodes[:1]})
    outcome = []
    for rule, (earliest, latest) in case.fires.items():
        steps = [fired.get(rule) for fired in first]
        passed = all(step is not None and earliest <= step <= latest for step in steps)
        outcome.append(Result(rule, case.name, f"fires {earliest}–{latest}", _at(steps), passed))
    for rule in case.quiet:
        steps = [fired.get(rule) for fired in first]
        outcome.append(Result(rule, case.name, "quiet", _at(steps), set(steps) == {None}))
    return outcome


def _at(steps: list[int | None]) -> str:
    if set(steps) == {None}:
        return "quiet"
    return "at " + ", ".join("–" if step is None else str(step) for step in steps)


def looks_ahead(expressions: Expressions, signals: pd.DataFrame, seed: int = 0) -> int | None:
    """The length of a prefix on which the expressions differ from those on all rows; None if none
    of CUTS random prefixes does. `rule_sql` refuses windows that look ahead; this checks values."""
    complete = expressions.rows(signals)
    rng = np.random.default_rng(seed)
    for cut in sorted(set(rng.integers(1, len(signals) + 1, CUTS).tolist())):
        part = expressions.rows(signals.iloc[:cut])
        pairs = zip(complete, part, strict=True)
        if not all(np.array_equal(a[:cut], b, equal_nan=True) for a, b in pairs):
            return cut
    return None
