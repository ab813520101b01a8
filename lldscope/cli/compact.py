"""`lldscope compact RUN`: merge small files into fewer large ones."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .shared import LocalRun, print_json

COMPACT_SCHEMA = 1


@click.command()
@click.argument("run", type=LocalRun("Recorders merge themselves what they write there."))
@click.option(
    "--keep-tokens",
    type=click.IntRange(min=1),
    metavar="STEPS",
    help="Delete the rows of `tokens` that are older than the last STEPS steps.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def compact(run: Path, keep_tokens: int | None, as_json: bool) -> None:
    """Merge the parts of RUN into fewer files, and remove what a killed process left behind.

    A running recorder's files are left alone. Most of a long run is its table `tokens`, a row
    per sampled token: --keep-tokens deletes the older ones. No other row is ever deleted.
    """
    from ..storage.compaction import compact as merge
    from ..storage.layout import read_run

    read_run(run)
    done = merge(run, keep_token_steps=keep_tokens)
    if as_json:
        print_json({"schema": COMPACT_SCHEMA, "run": str(run), **asdict(done)})
    else:
        click.echo(
            f"{done.files_before} parts of {done.bytes_before / 1e6:.1f} MB → "
            f"{done.files_after} parts of {done.bytes_after / 1e6:.1f} MB"
        )
        if done.rows_removed:
            click.echo(f"{done.rows_removed} rows of tokens deleted")
    for what, why in done.skipped.items():
        click.echo(f"lldscope: {what} is left as it is: {why}.", err=True)
