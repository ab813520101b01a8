"""`lldscope share RUN --out FOLDER`: a run as a Hugging Face dataset and a static Space."""

from __future__ import annotations

from pathlib import Path

import click

from ..core.terminal import plain
from .shared import LocalRun, warn_of_damage


@click.command()
@click.argument("run", type=LocalRun("Share a copy of it on this machine."))
@click.option(
    "--out", "folder", type=click.Path(path_type=Path), required=True,
    help="Where to write; a new or an empty folder.",
)
@click.option(
    "--texts", is_flag=True, help="Include the texts of questions, responses and tokens, which may "
    "be private.",
)
@click.option(
    "--push", "name", metavar="OWNER/NAME",
    help="Upload it to this dataset and Space at Hugging Face, which are private if they are new.",
)
def share(run: Path, folder: Path, texts: bool, name: str | None) -> None:
    """Write RUN as a folder to publish: its tables in Parquet as a Hugging Face dataset, whose card
    is the post-mortem; and in FOLDER/space a static Space that shows it.

    The dataset is a run: `lldscope diagnose FOLDER`, and hf://datasets/OWNER/NAME once it is
    uploaded. Nothing is uploaded without --push. Texts, notes and credentials are left
    out; configuration and events are as they were recorded.

    \b
    lldscope share runs/mine --out mine
    lldscope share runs/mine --out mine --push me/mine
    """
    from ..report import share as shares

    if name is not None and not shares.REPOSITORY.fullmatch(name):
        raise click.UsageError(f"{name}: write --push OWNER/NAME.")
    shared = shares.share(run, folder, texts)
    tables = ", ".join(f"{n:,} {table}" for table, n in shared.rows.items() if n)
    what = f"{tables}; events, configuration and report; {'with' if texts else 'without'} texts"
    click.echo(f"{plain(folder)}: {what}.", err=True)
    warn_of_damage(shared.damaged)
    for place in shares.push(folder, name) if name else ():
        click.echo(place)
