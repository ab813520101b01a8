"""Rules written by the user: a TOML file with [[rule]] tables, each with one SELECT.

The SELECT reads `signals` (`lldscope schema signals`) under the limits of `lldscope query` and
returns the steps at which the rule holds, with the `value` to show. It becomes a `rule.Rule` like
the built-in ones. docs/alerting.md has an example.
"""

from __future__ import annotations

import logging
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ..core.errors import LldscopeError, UsageError
from ..core.numbers import short
from ..core.schema import SIGNALS
from ..diagnosis import detectors as d
from ..diagnosis.evidence import Evidence, once
from ..diagnosis.registry import RULES, STALLED
from ..diagnosis.rule import Measurement, Rule, Severity
from ..query.sandbox import bounded, confine, rows
from ..query.statement import columns_of, insist_on_select

log = logging.getLogger("lldscope")

QUERY_SECONDS = 10.0
CUTS = 10  # prefixes of a run on which a rule must give the same answers as on the whole run
NO_RATE = "user rule: false-alarm rate unknown"

_REQUIRED = {"id": str, "severity": str, "query": str, "message": str, "advice": str}
_OPTIONAL = {"threshold": (int, float), "unit": str, "for_steps": int, "clear_steps": int}


class RuleQuery:
    """A SELECT over `signals`; `needs` are the signals it names. Raises UsageError if the query is
    invalid."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        with duckdb.connect(":memory:") as db:
            insist_on_select(db, sql)
            names = columns_of(db, sql)
        self.needs = tuple(sorted(names & set(SIGNALS.names) - {"step"}))
        self(dict.fromkeys(SIGNALS.names, np.zeros(0)))

    def __call__(self, signals: d.Columns) -> dict[int, float]:
        """The steps at which the rule holds, and the value at each; NaN if it returned none."""
        columns = {n: pa.array(d.floats(signals, n), from_pandas=True) for n in self.needs}
        columns["step"] = pa.array(np.asarray(signals["step"], dtype=np.int64))
        try:
            with duckdb.connect(":memory:") as db:
                confine(db)
                db.register("signals", pa.table(columns))
                with bounded(db, QUERY_SECONDS):
                    answer = rows(db, self._sql)
        except duckdb.Error as error:
            raise UsageError(str(error).split("\n")[0]) from None
        if not {*answer.names} <= {"step", "value"} or "step" not in answer.names:
            raise UsageError("The query must return `step`, and `value` or nothing else.")
        pairs = (dict(zip(answer.names, row, strict=True)) for row in answer.rows)
        try:
            return {int(p["step"]): _number(p.get("value")) for p in pairs}
        except (TypeError, ValueError):
            raise UsageError("The query returns a step or a value that is no number.") from None


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def all_rules(path: Path | None) -> tuple[Rule, ...]:
    """The built-in rules and those of a file. Raises UsageError with file, rule and reason."""
    return RULES if path is None else (*RULES, *load(path))


def load(path: Path) -> dict[Rule, RuleQuery]:
    """The rules of a file, each with its query."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: this is not TOML: {error}.") from None
    except OSError as error:
        raise LldscopeError(f"{path} cannot be read ({error.strerror}).") from None
    tables = content.pop("rule", None)
    if content or not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise UsageError(f"{path}: a file holds rules only, each under [[rule]], two brackets.")
    rules: dict[Rule, RuleQuery] = {}
    for number, table in enumerate(tables, 1):
        where = f"{path}: rule {table.get('id', number)!r}"
        try:
            _check(table, {r.id for r in (*RULES, STALLED, *rules)})
            query = RuleQuery(table["query"])
            rules[_rule(table, query, where)] = query
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
    return rules


def _check(table: dict[str, Any], ids: set[str]) -> None:
    kinds: dict[str, Any] = {**_REQUIRED, **_OPTIONAL}
    for key, value in table.items():
        if key not in kinds:
            raise UsageError(f"`{key}` is unknown; a rule has {', '.join(kinds)}.")
        if not isinstance(value, kinds[key]) or isinstance(value, bool):
            what = {str: "text", int: "a whole number"}.get(kinds[key], "a number")
            raise UsageError(f"`{key}` must be {what}.")
        if key in ("for_steps", "clear_steps") and value < 1:
            raise UsageError(f"`{key}` must be 1 or more.")
    if missing := [key for key in _REQUIRED if key not in table]:
        raise UsageError(f"`{missing[0]}` is missing.")
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,63}", table["id"]):
        raise UsageError("an id is made of a-z, 0-9 and -, as in `entropy-surge`.")
    if table["id"] in ids:
        raise UsageError("there is another rule, maybe a built-in one, with this id.")
    if table["severity"] not in list(Severity):
        raise UsageError(f"`severity` must be one of {', '.join(Severity)}.")


def _rule(table: dict[str, Any], query: RuleQuery, where: str) -> Rule:
    if not query.needs:
        raise UsageError("The query looks at no signal.")
    threshold, unit = float(table.get("threshold", math.nan)), table.get("unit", "")
    failures: list[str] = []

    @once
    def measure(e: Evidence) -> Measurement:
        """Evaluate the rule. If that fails, the rule does not hold; other rules go on."""
        answer: dict[int, float] = {}
        try:
            answer = query(e.signals)
        except UsageError as error:
            if not failures:
                log.warning("lldscope: %s cannot be evaluated and does not hold: %s", where, error)
            failures.append(str(error))
        value = np.array([answer.get(step, math.nan) for step in e.step.tolist()], float)

        def message(row: int) -> str:
            value_text = "" if math.isnan(value[row]) else f": {short(float(value[row]))} {unit}"
            limit = "" if math.isnan(threshold) else f" (limit {short(threshold)})"
            return f"{table['message']}{value_text.rstrip()}{limit}"

        holds = np.isin(e.step, list(answer))
        return Measurement(holds, value, threshold, message)

    return Rule(
        id=table["id"],
        severity=Severity(table["severity"]),
        needs=query.needs,
        meaning=table["message"],
        advice=table["advice"],
        cause=f"Rule {table['id']}",
        action=_first_sentence(table["advice"]),
        measure=measure,
        unit=unit,
        for_steps=table.get("for_steps", 1),
        clear_steps=table.get("clear_steps", 20),
        promise=NO_RATE,
    )


def _first_sentence(text: str) -> str:
    first = text.split(". ")[0].rstrip(".")
    return first[:1].lower() + first[1:]


def looks_ahead(query: RuleQuery, signals: Any) -> int | None:
    """The length of a prefix of the signals on which the query answers differently than on all
    rows: such a rule gives other alarms live than afterwards. None if CUTS prefixes agree."""
    complete = query(signals)
    for cut in np.unique(np.linspace(1, len(signals), CUTS + 1, dtype=int)[:-1]).tolist():
        part, upto = query(signals.iloc[:cut]), int(signals["step"].iloc[cut - 1])
        if repr(sorted(part.items())) != repr(sorted(i for i in complete.items() if i[0] <= upto)):
            return int(cut)
    return None
