"""`lldscope rules`: list the rules, and show where the rules of a file fire in recorded runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import UsageError
from ..core.numbers import plural
from ..runs import open_run
from .shared import print_json, print_table

if TYPE_CHECKING:
    from ..diagnosis.registry import Rule

RULES_SCHEMA = 1


@click.group()
def rules() -> None:
    """List the rules that raise alarms, or test your own."""


@rules.command("list")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def list_rules(file: Path | None, as_json: bool) -> None:
    """List the built-in rules, and those of FILE."""
    from ..user_rules.user_rules import all_rules

    every = all_rules(file)
    if as_json:
        print_json({"schema": RULES_SCHEMA, "rules": [_about(r) for r in every]})
        return
    print_table(
        ("rule", "severity", "fires after", "clears after", "looks at"),
        [(r.id, r.severity, plural(r.for_steps, "step"), plural(r.clear_steps, "step"),
          ", ".join(r.needs)) for r in every],
        wide=False,
    )


def _about(rule: Rule) -> dict[str, Any]:
    fields = ("id", "severity", "needs", "meaning", "advice", "unit", "for_steps", "clear_steps",
              "false_alarms")
    return {name: getattr(rule, name) for name in fields}


@rules.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def test(file: Path, runs: tuple[str, ...], as_json: bool) -> None:
    """Check the rules in FILE, and show where they fire in recorded RUNs. Exit code 1 if one looks
    at later steps or cannot be evaluated."""
    from ..user_rules.user_rules import load, looks_ahead

    declared = load(file)
    results, has_failed = [], False
    for place in runs:
        with open_run(place) as run:
            signals = run.signals()
            for rule, query in declared.items():
                try:
                    cut = looks_ahead(query, signals) if len(signals) else None
                    ahead = f"looks at later steps than the first {cut} rows"
                    error = None if cut is None else ahead
                except UsageError as problem:
                    error = str(problem)
                has_failed |= error is not None
                alerts = [a for a in run.assess(rules=[rule]).alerts if a.state != "pending"]
                spans = [span for alert in alerts for span in alert.episodes]
                results.append({"rule": rule.id, "run": place, "episodes": spans, "error": error})
    if as_json:
        rule_ids = [rule.id for rule in declared]
        print_json({"schema": RULES_SCHEMA, "rules": rule_ids, "results": results})
    else:
        print_table(("rule", "run", "fires"), [(r["rule"], r["run"], _fires(r)) for r in results])
        click.echo(f"{plural(len(declared), 'rule')} can be used.", err=True)
    sys.exit(1 if has_failed else 0)


def _fires(result: dict[str, Any]) -> str:
    spans = (f"{first}–{'end' if last is None else last}" for first, last in result["episodes"])
    return result["error"] or ", ".join(spans) or "quiet"
