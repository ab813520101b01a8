"""`lldscope doctor [RUN]`: whether a run, or this installation, is intact."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

DOCTOR_SCHEMA = 1
EXIT = {None: 0, "note": 0, "warning": 10, "damage": 11}
STYLE = {"note": "dim", "warning": "yellow", "damage": "bold red"}


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--repair", is_flag=True, help="Do what is offered for each finding.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def doctor(run: Path | None, repair: bool, as_json: bool) -> None:
    """Examine every file of RUN; without RUN, this installation.

    Exit code: 0 intact, 10 something to know or to clean up, 11 damage; 1 internal or I/O error,
    2 wrong usage. --repair moves damaged parts into RUN/quarantine, lists parts whose manifest line
    is lost, and removes what a killed process left; it touches nothing that a recorder is writing.
    """
    from ..core.errors import UsageError
    from ..doctor.checks import examine
    from ..doctor.checks import repair as repair_findings
    from ..doctor.installation import inspect

    if run is None:
        if repair:
            raise UsageError("Name the run that --repair should repair.")
        installation = inspect()
        head = {"schema": DOCTOR_SCHEMA, "installation": installation.versions}
        summary = "  ".join(f"{name} {version}" for name, version in installation.versions.items())
        findings, worst = installation.findings, installation.worst
    else:
        report = examine(run)
        if repair:
            report = repair_findings(report)
        head = {
            "schema": DOCTOR_SCHEMA,
            "run": str(run),
            "parts": report.parts,
            "rows": report.rows,
        }
        summary = f"{report.parts} parts"
        summary += "".join(f", {n} rows of {table}" for table, n in sorted(report.rows.items()))
        findings, worst = [f.plain() for f in report.findings], report.worst()
    if as_json:
        from ..storage.json_files import to_json

        click.echo(to_json({**head, "worst": worst, "findings": findings}, indent=1))
    else:
        _show(summary, findings)
    sys.exit(EXIT[worst])


def _show(summary: str, findings: list[dict[str, Any]]) -> None:
    from rich.text import Text

    from ..core.terminal import console, plain

    out = console()
    out.print(plain(summary))
    for finding in findings:
        line = Text.assemble(
            (finding["severity"], STYLE[finding["severity"]]),
            f"  {finding['what']}  {plain(finding['where'])}: {plain(finding['message'])}",
        )
        if finding["repaired"]:
            line.append(f"  repaired: {finding['repair']}")
        elif finding["repair"]:
            line.append(f"  --repair: {finding['repair']}")
        out.print(line)
    if not findings:
        out.print("nothing is wrong")
