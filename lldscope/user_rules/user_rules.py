"""Rules written by the user: a TOML file with [[rule]] and [[case]] tables.

A rule is an SQL expression over the columns of `signals` (`lldscope schema signals`), true where
the rule holds; `rule_sql` says what it may contain. It becomes a `rule.Rule` like the built-in
ones, with the same states and alarms. docs/alerting.md has an example.
"""

from __future__ import annotations

import logging
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import LldscopeError, UsageError
from ..core.numbers import short
from ..core.schema import SIGNALS
from ..diagnosis import detectors as d
from ..diagnosis.evidence import Evidence, once
from ..diagnosis.registry import RULES, STALLED
from ..diagnosis.rule import Measurement, Rule, Severity
from .rule_cases import Case
from .rule_sql import BadExpression, Expressions

log = logging.getLogger("lldscope")

NO_RATE = "a rule of the user's: no false-alarm rate is claimed"

_NUMBER = (int, float)
# Key → (type, whether it is required).
_RULE_KEYS: dict[str, tuple[Any, bool]] = {
    "id": (str, True),
    "severity": (str, True),
    "condition": (str, True),
    "message": (str, True),
    "advice": (str, True),
    "value": (str, False),
    "threshold": (_NUMBER, False),
    "unit": (str, False),
    "for_steps": (int, False),
    "clear_steps": (int, False),
}
_CASE_KEYS: dict[str, tuple[Any, bool]] = {
    "name": (str, True),
    "signals": (dict, True),
    "noise": (dict, False),
    "fires": (dict, False),
    "quiet": (list, False),
}
_TYPE_NAMES = {str: "text", int: "a whole number", _NUMBER: "a number", dict: "a table",
               list: "a list"}  # fmt: skip


@dataclass(frozen=True)
class UserRule:
    """A rule, its expressions, and the errors of evaluating them."""

    rule: Rule
    expressions: Expressions
    failures: list[str]


@dataclass(frozen=True)
class RuleFile:
    """What a file declares."""

    rules: list[UserRule]
    cases: list[Case]


def all_rules(path: Path | None) -> tuple[Rule, ...]:
    """The built-in rules and those of a file; a UsageError names file, rule and error."""
    return RULES if path is None else (*RULES, *(user.rule for user in load([path]).rules))


def load(paths: Sequence[Path]) -> RuleFile:
    """The rules and cases of several files; a case may name rules of any of them."""
    rules: list[UserRule] = []
    cases: list[Case] = []
    for path in paths:
        tables = _read(path)
        for number, table in enumerate(tables.get("rule", ()), 1):
            where = f"{path}: rule {_name(table, 'id', number)}"
            _check_keys(table, _RULE_KEYS, where)
            if table["id"] in {r.id for r in (*RULES, STALLED)}:
                raise UsageError(f"{where}: this is a built-in rule; choose another id.")
            if table["id"] in {user.rule.id for user in rules}:
                raise UsageError(f"{where}: there are two rules with this id.")
            rules.append(_rule(table, where))
    known = {r.id for r in RULES} | {user.rule.id for user in rules}
    for path in paths:
        for number, table in enumerate(_read(path).get("case", ()), 1):
            where = f"{path}: case {_name(table, 'name', number)}"
            _check_keys(table, _CASE_KEYS, where)
            cases.append(_case(table, known, where))
    return RuleFile(rules, cases)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: this is not TOML: {error}.") from None
    except OSError as error:
        raise LldscopeError(f"{path} cannot be read ({error.strerror}).") from None
    for key, tables in content.items():
        if key not in ("rule", "case"):
            raise UsageError(f"{path}: `{key}` is unknown; a file holds [[rule]] and [[case]].")
        if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
            raise UsageError(f"{path}: write [[{key}]], with two brackets, above each {key}.")
    return content


def _name(table: dict[str, Any], key: str, number: int) -> str:
    return repr(table[key]) if isinstance(table.get(key), str) else f"number {number}"


def _check_keys(table: dict[str, Any], keys: dict[str, tuple[Any, bool]], where: str) -> None:
    for key, value in table.items():
        if key not in keys:
            near = get_close_matches(key, keys, 1)
            hint = f"; do you mean `{near[0]}`?" if near else f"; known are: {', '.join(keys)}."
            raise UsageError(f"{where}: `{key}` is unknown{hint}")
        kind, _ = keys[key]
        # In Python a bool is an int; in TOML it is not.
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UsageError(f"{where}: `{key}` must be {_TYPE_NAMES[kind]}.")
    for key, (_, required) in keys.items():
        if required and key not in table:
            raise UsageError(f"{where}: `{key}` is missing.")


def _rule(table: dict[str, Any], where: str) -> UserRule:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,63}", table["id"]):
        raise UsageError(f"{where}: an id is made of a-z, 0-9 and -, as in `entropy-surge`.")
    if table["severity"] not in list(Severity):
        raise UsageError(f"{where}: `severity` must be one of {', '.join(Severity)}.")
    for key in ("for_steps", "clear_steps"):
        if table.get(key, 1) < 1:
            raise UsageError(f"{where}: `{key}` must be 1 or more.")
    try:
        expressions = Expressions(table["condition"], table.get("value"))
    except BadExpression as error:
        raise UsageError(f"{where}: {error}.") from None
    needs = tuple(name for name in expressions.needs if name != "step")
    if not needs:
        raise UsageError(f"{where}: the condition looks at no signal.")
    failures: list[str] = []
    threshold = float(table.get("threshold", math.nan))
    unit = table.get("unit", "")

    @once
    def measure(e: Evidence) -> Measurement:
        """A rule that cannot be evaluated does not hold; the other rules are not affected."""
        holds, value = np.zeros(len(e.step), dtype=bool), np.full(len(e.step), math.nan)
        try:
            holds, value = expressions.rows(e.signals)
        except BadExpression as error:
            if not failures:
                log.warning("lldscope: %s cannot be evaluated and does not hold: %s", where, error)
            failures.append(str(error))

        def message(row: int) -> str:
            shown = "" if math.isnan(value[row]) else f": {short(float(value[row]))} {unit}"
            limit = "" if math.isnan(threshold) else f" (limit {short(threshold)})"
            return f"{table['message']}{shown.rstrip()}{limit}"

        return Measurement(holds, value, d.constant(threshold, value), message)

    rule = Rule(
        id=table["id"],
        severity=Severity(table["severity"]),
        needs=needs,
        meaning=table["message"],
        advice=table["advice"],
        measure=measure,
        unit=unit,
        for_steps=table.get("for_steps", 1),
        clear_steps=table.get("clear_steps", 20),
        false_alarms=NO_RATE,
    )
    return UserRule(rule, expressions, failures)


def _case(table: dict[str, Any], known: set[str], where: str) -> Case:
    for key in ("signals", "noise"):
        for name in table.get(key, {}):
            if name not in SIGNALS.names or name == "step":
                raise UsageError(f"{where}: there is no signal `{name}`.")
    for name, points in table["signals"].items():
        if not _are_points(points):
            raise UsageError(
                f"{where}: `signals.{name}` must be a list of [step, value], steps rising from 0."
            )
    if not table["signals"]:
        raise UsageError(f"{where}: it gives no signal.")
    for name, spread in table.get("noise", {}).items():
        if not isinstance(spread, _NUMBER) or isinstance(spread, bool) or spread < 0:
            raise UsageError(f"{where}: `noise.{name}` must be a number, 0 or more.")
    for rule, span in table.get("fires", {}).items():
        if not (isinstance(span, list) and len(span) == 2 and all(type(s) is int for s in span)):
            raise UsageError(f"{where}: `fires.{rule}` must be [earliest step, latest step].")
    named = [*table.get("fires", {}), *table.get("quiet", [])]
    for rule in named:
        if rule not in known:
            raise UsageError(f"{where}: there is no rule {rule!r}.")
    if not named:
        raise UsageError(f"{where}: it says neither what `fires` nor what stays `quiet`.")
    return Case(**table)


def _are_points(points: Any) -> bool:
    if not isinstance(points, list) or not points:
        return False
    if not all(isinstance(p, list) and len(p) == 2 for p in points):
        return False
    if not all(type(x) in _NUMBER for p in points for x in p):
        return False
    steps = [p[0] for p in points]
    return steps[0] >= 0 and sorted(set(steps)) == steps and steps[-1] < 1_000_000
