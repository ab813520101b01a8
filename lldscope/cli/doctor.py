"""`lldscope doctor RUN`: whether a run is intact."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.terminal import console, paragraph, plain
from .shared import LocalRun, print_json

if TYPE_CHECKING:
    from ..doctor.findings import Finding

EXIT = {None: 0, "note": 0, "warning": 10, "damage": 11}
STYLE = {"note": "dim", "warning": "yellow", "damage": "bold red"}


@click.command()
@click.argument("run", type=LocalRun("Copy it into a folder and examine that."))
@click.option("--repair", is_flag=True, help="Repair what can be repaired.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def doctor(run: Path, repair: bool, as_json: bool) -> None:
    """Check every file of RUN.

    Exit code: 0 intact or only notes (such as removable leftovers), 10 warnings, 11 damage;
    1 internal or I/O error, 2 wrong usage. --repair moves damaged parts into RUN/quarantine,
    restores lost manifest lines, and removes what a killed process left; what a recorder is writing
    is left alone.
    """
    from ..doctor import checks
    from ..doctor.findings import worst

    result = checks.examine(run)
    if repair:
        result = checks.repair(result)
    findings, parts, rows = result.findings, len(result.manifest.parts), result.rows
    head = {"schema": 1, "run": str(run), "parts": parts, "rows": rows}
    summary = f"{parts} parts"
    summary += "".join(f", {n:,} rows of {table}" for table, n in sorted(rows.items()))
    severity = worst(findings)
    if as_json:
        listed = [f.to_dict() for f in findings]
        print_json({**head, "worst": severity, "findings": listed})
    else:
        _show(summary, findings)
    sys.exit(EXIT[severity])


def _show(summary: str, findings: list[Finding]) -> None:
    from rich.text import Text

    out = console()
    out.print(paragraph(out, summary))
    for f in findings:
        line = Text.assemble(
            (f.severity, STYLE[f.severity]), f"  {f.what}  {plain(f.where)}: {plain(f.message)}"
        )
        if f.repaired:
            line.append(f"  repaired: {f.repair}")
        elif f.repair:
            line.append(f"  --repair: {f.repair}")
        out.print(paragraph(out, line))
    if not findings:
        out.print("no damage, nothing to clean up")
