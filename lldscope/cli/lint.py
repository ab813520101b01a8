"""`lldscope lint RUN`: compare what the run did with its configuration."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.numbers import plural
from ..core.terminal import console, paragraph
from ..runs import open_run
from .shared import RunPath, print_json, warn_of_damage

if TYPE_CHECKING:
    from ..lint.examine import Finding, Result

FINDINGS = 10  # exit code


@click.command()
@click.argument("run", type=RunPath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def lint(run: Path, as_json: bool) -> None:
    """Compare the rows of RUN with its configuration and with each other.

    Nothing is trained. Each finding names the contradicting rows, what the fault does to training,
    and the settings involved; checks that need rows that were not recorded are listed.

    Exit code: 0 nothing found, 10 findings; 1 internal or I/O error, 2 wrong usage.
    """
    from ..lint.examine import examine

    with open_run(run) as source:
        result = examine(source)
        damaged = source.damaged
    if as_json:
        print_json({"schema": 1, "run": str(run), **asdict(result)})
    else:
        _show(result)
    warn_of_damage(damaged)
    sys.exit(FINDINGS if result.findings else 0)


def _show(result: Result) -> None:
    out = console()
    for finding in result.findings:
        out.print(finding.check, style="bold yellow")
        for line in _lines(finding):
            out.print(paragraph(out, line, 2))
        out.print()
    out.print(f"{plural(len(result.findings), 'finding')}, {len(result.passed)} checks passed")
    names = {"passed": result.passed, "switched off by the settings": result.declared}
    lines = [f"{title}: {', '.join(of)}" for title, of in names.items() if of]
    lines += [f"not checked: {check} needs {needs}" for check, needs in result.unseen.items()]
    for line in lines:
        out.print(paragraph(out, line))


def _lines(finding: Finding) -> list[str]:
    first, last = finding.first_step, finding.last_step
    where = f"step {first}" if first == last else f"steps {first} to {last}"
    return [
        f"violated: {finding.asks} ({plural(finding.rows, 'row')}, {where})",
        f"effect: {finding.effect}",
        *(f"setting: {name} = {value}" for name, value in finding.settings.items()),
        *("  " + ", ".join(f"{k} {repr(v) if isinstance(v, str) else v}" for k, v in row.items())
          for row in finding.evidence),
    ]
