"""`lldscope lint RUN`: whether the run does what its configuration says."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import RunNotFound, UsageError
from .shared import RunPath, print_json, warn_of_damage

if TYPE_CHECKING:
    from ..lint.examine import Finding, Result
    from ..lint.weights import Comparison

LINT_SCHEMA = 1
FINDINGS = 10  # exit code


@click.command()
@click.argument("run", type=RunPath())
@click.option(
    "--checkpoint", type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Also say whether these weights gave the recorded log-probabilities.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def lint(run: Path, checkpoint: Path | None, as_json: bool) -> None:
    """Compare the rows of RUN with its configuration and with each other.

    Nothing is run again. Each finding names the rows that contradict, what the fault does to
    training, and the settings it is about; what the run does not record is listed as not checked.

    Exit code: 0 nothing found, 10 findings; 1 internal or I/O error, 2 wrong usage.
    """
    from ..lint.examine import examine
    from ..lint.weights import compare_weights
    from ..runs import open_run

    try:
        opened = open_run(run)
    except RunNotFound as error:
        raise UsageError(str(error)) from error
    with opened as source:
        result = examine(source)
        weights = None if checkpoint is None else compare_weights(source, checkpoint)
        damaged = source.damaged
    if as_json:
        print_json({
            "schema": LINT_SCHEMA, "run": str(run), **asdict(result),
            "weights": weights and [asdict(w) | {"same": w.same} for w in weights],
        })
    else:
        _show(result)
        _show_weights(weights or [])
    warn_of_damage(damaged)
    sys.exit(FINDINGS if result.findings else 0)


def _show(result: Result) -> None:
    for finding in result.findings:
        _show_finding(finding)
    n = len(result.findings)
    click.echo(f"{n} {'finding' if n == 1 else 'findings'}, {len(result.passed)} checks passed")
    if result.passed:
        _show_names("passed", result.passed)
    if result.declared:
        _show_names("not checked, as the settings declare otherwise", result.declared)
    for check, needs in result.unseen.items():
        click.echo(f"not checked: {check} needs {needs}")


def _show_names(title: str, names: list[str]) -> None:
    text = f"{title}: {', '.join(names)}"
    click.echo(textwrap.fill(text, 100, subsequent_indent="  ", break_on_hyphens=False))


def _show_finding(finding: Finding) -> None:
    from ..core.terminal import plain

    first, last = finding.first_step, finding.last_step
    where = f"step {first}" if first == last else f"steps {first} to {last}"
    rows = f"{finding.rows:,} {'row' if finding.rows == 1 else 'rows'}"
    click.secho(f"{finding.check}", fg="yellow", bold=True, nl=False)
    click.echo(f"  violated: {finding.asks} ({rows}, {where})")
    click.echo(f"  effect: {finding.effect}")
    for name, value in finding.settings.items():
        click.echo(f"  setting: {plain(name)} = {plain(value)}")
    for row in finding.evidence:
        click.echo("    " + ", ".join(f"{k} {_cell(plain, v)}" for k, v in row.items()))
    click.echo()


def _cell(plain: Any, value: Any) -> str:
    return plain(repr(value) if isinstance(value, str) else value)


def _show_weights(weights: list[Comparison]) -> None:
    from ..core.numbers import short

    for w in weights:
        verdict = "these weights" if w.same else "other weights"
        click.echo(
            f"step {w.step}: {verdict} ({short(w.difference)} nats a token, {w.tokens} tokens)"
        )
