"""`lldscope annotate RUN`: what a run is called, its tags, and a note."""

from __future__ import annotations

from pathlib import Path

import click

from ..core.terminal import plain
from ..runs import open_run
from ..storage.notes import write_about
from .shared import LocalRun


@click.command()
@click.argument("run", type=LocalRun("Names, tags and notes are kept in a run's folder only."))
@click.option("--name", help="The new name; empty: the recorded one.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Add a tag; repeatable.")
@click.option("--untag", "untags", multiple=True, metavar="TAG", help="Remove a tag.")
@click.option("--note", help="Replace the note; empty: remove it.")
def annotate(
    run: Path, name: str | None, tags: tuple[str, ...], untags: tuple[str, ...], note: str | None
) -> None:
    """Name RUN, tag it, or add a note; without options, show them.

    Stored in the run's notes.jsonl. The name appears in lists, pages, messages and reports; the
    dashboard filters its list by tags.
    """
    with open_run(run) as reader:
        edits = [("name", name), *(("tag", t) for t in tags), *(("untag", t) for t in untags),
                ("note", note)]
        for kind, text in edits:
            if text is not None:
                write_about(reader.path, kind, text)
        reader.refresh()
        click.echo(f"name  {plain(reader.name)}")
        click.echo(f"tags  {plain(', '.join(reader.info.get('tags') or ['–']))}")
        click.echo(f"note  {plain(reader.info.get('note') or '–')}")
