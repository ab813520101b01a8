"""`lldscope rules`: the rules there are, and whether a file of one's own does what it should."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .shared import print_json, print_table

if TYPE_CHECKING:
    from ..diagnosis.registry import Rule
    from ..user_rules.rule_cases import Result
    from ..user_rules.user_rules import RuleFile

RULES_SCHEMA = 1


@click.group()
def rules() -> None:
    """The rules that raise alarms: what they are, and tests for your own."""


@rules.command("list")
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--markdown", is_flag=True, help="The built-in rules as in docs/alarms.md.")
def list_rules(files: tuple[Path, ...], as_json: bool, markdown: bool) -> None:
    """List the built-in rules, and those of FILEs."""
    if markdown:
        from ..diagnosis.page import markdown as page

        click.echo(page())
        return
    from ..diagnosis.registry import RULES
    from ..user_rules.user_rules import load

    every = [*RULES, *(user.rule for user in load(files).rules)]
    if as_json:
        print_json({"schema": RULES_SCHEMA, "rules": [_about(r) for r in every]})
        return
    print_table(
        ("rule", "severity", "fires after", "clears after", "looks at"),
        [(r.id, r.severity, _steps(r.for_steps), _steps(r.clear_steps), ", ".join(r.needs))
         for r in every],
    )  # fmt: skip


def _steps(count: int) -> str:
    return f"{count} step{'s' if count > 1 else ''}"


def _about(rule: Rule) -> dict[str, Any]:
    wanted = ("id", "severity", "needs", "meaning", "advice", "unit", "for_steps", "clear_steps",
              "false_alarms")  # fmt: skip
    return {name: getattr(rule, name) for name in wanted}


@rules.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option(
    "--run",
    "runs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Also show where the rules fire in this recorded run; may be given again.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def test(files: tuple[Path, ...], runs: tuple[Path, ...], as_json: bool) -> None:
    """Try the rules of FILEs on their cases and on recorded runs; exit 1 if one fails."""
    from ..user_rules.user_rules import load

    declared = load(files)
    found = [*_on_cases(declared), *_on_runs(declared, runs)]
    passed = all(result.passed for result in found)
    if as_json:
        answer = {
            "schema": RULES_SCHEMA,
            "rules": [user.rule.id for user in declared.rules],
            "results": [vars(result) for result in found],
            "passed": passed,
        }
        print_json(answer)
    else:
        _show(declared, found)
    tested = {rule for case in declared.cases for rule in case.fires}
    for user in declared.rules:
        if user.rule.id not in tested:
            click.echo(f"lldscope: no case says when {user.rule.id} fires.", err=True)
    sys.exit(0 if passed else 1)


def _on_cases(declared: RuleFile) -> list[Result]:
    from ..diagnosis.registry import RULES
    from ..user_rules.rule_cases import SEEDS, drawn, results

    every = [*RULES, *(user.rule for user in declared.rules)]
    return [
        result
        for case in declared.cases
        for result in (*results(case, every), *_faults(declared, drawn(case, SEEDS[0]), case.name))
    ]


def _on_runs(declared: RuleFile, paths: Sequence[Path]) -> list[Result]:
    """Where the rules fire in recorded runs: for the reader to judge, not to pass or fail."""
    from ..diagnosis.assess import assess
    from ..runs import open_run
    from ..user_rules.rule_cases import Result

    results = []
    for path in paths:
        signals = open_run(path).signals()
        alerts = assess(signals, rules=[user.rule for user in declared.rules]).alerts
        spans = {a.rule: a.episodes for a in alerts if a.state != "pending"}
        for user in declared.rules:
            episodes = (f"{a}–{'end' if b is None else b}" for a, b in spans.get(user.rule.id, ()))
            found = "fires " + ", ".join(episodes) if user.rule.id in spans else "quiet"
            results.append(Result(user.rule.id, str(path), "", found, True))
        results += _faults(declared, signals, str(path))
    return results


def _faults(declared: RuleFile, signals: Any, where: str) -> list[Result]:
    """Rules that cannot be evaluated on some signals, or say something else in hindsight."""
    from ..user_rules.rule_cases import Result, looks_ahead
    from ..user_rules.rule_sql import BadExpression

    results = []
    for user in declared.rules:
        try:
            cut = looks_ahead(user.expressions, signals) if len(signals) else None
        except BadExpression as error:
            results.append(Result(user.rule.id, where, "can be evaluated", str(error), False))
            continue
        if cut is not None:
            found = f"something else on the first {cut} rows alone"
            results.append(Result(user.rule.id, where, "looks at no later step", found, False))
    return results


def _show(declared: RuleFile, found: list[Result]) -> None:
    rows = [
        (r.rule, r.where, r.expected or "–", r.found, "ok" if r.passed else "FAILED") for r in found
    ]
    if rows:
        print_table(("rule", "where", "expected", "found", ""), rows)
    failed = sum(not r.passed for r in found)
    click.echo(
        f"{len(declared.rules)} rules, {len(declared.cases)} cases, {failed} failed", err=True
    )
