"""`lldscope compact RUN`: merge small files into fewer large ones."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ..storage.layout import read_run
from .shared import LocalRun, print_json


@click.command()
@click.argument("run", type=LocalRun("Recorders merge themselves what they write there."))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def compact(run: Path, as_json: bool) -> None:
    """Merge the parts of RUN into fewer files, and remove what a killed process left behind.

    A running recorder's files are left alone. No row is ever deleted.
    """
    from ..storage.compaction import compact as merge

    read_run(run)
    done = merge(run)
    if as_json:
        print_json({"schema": 1, "run": str(run), **asdict(done)})
    else:
        click.echo(
            f"{done.files_before} parts of {done.bytes_before / 1e6:.1f} MB → "
            f"{done.files_after} parts of {done.bytes_after / 1e6:.1f} MB"
        )
    for what, why in done.skipped.items():
        click.echo(f"lldscope: {what} is left as it is: {why}.", err=True)
