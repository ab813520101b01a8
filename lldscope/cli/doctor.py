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
        found = inspect()
        head = {"schema": DOCTOR_SCHEMA, "installation": found.versions}
        words = "  ".join(f"{name} {version}" for name, version in found.versions.items())
        findings, worst = found.findings, found.worst
    else:
        seen = examine(run)
        if repair:
            seen = repair_findings(seen)
        head = {"schema": DOCTOR_SCHEMA, "run": str(run), "parts": seen.parts, "rows": seen.rows}
        words = f"{seen.parts} parts"
        words += "".join(f", {n} rows of {table}" for table, n in sorted(seen.rows.items()))
        findings, worst = [f.plain() for f in seen.findings], seen.worst()
    if as_json:
        from ..storage.json_files import to_json

        click.echo(to_json({**head, "worst": worst, "findings": findings}, indent=1))
    else:
        _show(words, findings)
    sys.exit(EXIT[worst])


def _show(words: str, findings: list[dict[str, Any]]) -> None:
    from rich.text import Text

    from ..core.terminal import console, plain

    out = console()
    out.print(plain(words))
    for found in findings:
        line = Text.assemble(
            (found["severity"], STYLE[found["severity"]]),
            f"  {found['what']}  {plain(found['where'])}: {plain(found['message'])}",
        )
        if found["repaired"]:
            line.append(f"  repaired: {found['repair']}")
        elif found["repair"]:
            line.append(f"  --repair: {found['repair']}")
        out.print(line)
    if not findings:
        out.print("nothing is wrong")
