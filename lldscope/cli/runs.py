"""`lldscope runs [ROOT]`: the runs under a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.palette import PHASES
from ..core.terminal import age
from ..runs import names_below
from ..storage.url import Url
from .shared import NO_RUNS, RunPath, here, print_json, print_table, progress, verdict_text

if TYPE_CHECKING:
    from ..monitor.summary import Summary

FEW = 20  # runs that are read without a progress bar, in a second or so


@click.command()
@click.argument("root", type=RunPath(), required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON array on stdout.")
def runs(root: Path | None, as_json: bool) -> None:
    """List the runs under ROOT (default: runs): verdict, phase, last step, alarms."""
    place = here(root)
    rows = rows_below(place)
    if as_json:
        print_json(rows)
    elif rows:
        head = ("run", "verdict", "phase", "step", "last row", "alarms")
        print_table(head, map(_cells, rows), right=(3,), wide=False)
    else:
        click.echo(f"lldscope: no runs under {place} yet. {NO_RUNS}", err=True)


def rows_below(root: Any) -> list[dict[str, Any]]:
    """A row for each run under a folder or at an address, from the index or from the run itself."""
    from ..monitor.run_index import RunIndex, fingerprint
    from ..query.remote import find_remote

    # The states before the rows, so that no later change is missed.
    if isinstance(root, Url):
        urls = find_remote(root)
        remote = {url.relative_to(root).as_posix(): url for url in urls}
        states = {name: urls[url] for name, url in remote.items()}
    else:
        remote = {}
        states = {name: fingerprint(f"{root}/{name}") for name in names_below(root)}
    if [*states] == ["."]:
        return [summary.row for summary in _read({root.name: root}, root)]
    index = RunIndex(root)
    rows = {name: index.row(name, digest) for name, digest in states.items()}
    new = {name: remote.get(name) or root / name for name, row in rows.items() if row is None}
    try:
        for summary in _read(new, root):
            index.put(summary, states[summary.name])
            rows[summary.name] = summary.row
    finally:  # after Ctrl-C, keep the runs that were read
        index.save(rows)
    return [row for row in rows.values() if row is not None]


def _read(places: dict[str, Any], root: Any) -> Iterator[Summary]:
    if not places:
        return
    from ..monitor.summary import read_many  # slow to import, and not needed for the index

    with progress(length=len(places), hidden=len(places) <= FEW) as bar:
        for summary in read_many(places, root):
            yield summary
            bar.update(1)


def _cells(row: dict[str, Any]) -> list[Any]:
    if "error" in row:
        return [row["run"], verdict_text("unreadable", "unreadable"), row["error"]]
    seconds = row["last_row_age_seconds"]
    last = row["life"] if seconds is None else f"{row['life']} {age(seconds)} ago"
    others = [f"+{len(row['firing']) - 1}"] if len(row["firing"]) > 1 else []
    damage = [f"{len(row['damaged'])} damaged: see check"] if row["damaged"] else []
    name = " ".join([row["run"], *(f"#{tag}" for tag in row["tags"])])
    return [
        name, verdict_text(row["verdict"], row["verdict_word"]),
        PHASES[row["phase"]].word if row["phase"] else None, row["last_step"], last,
        ", ".join([" ".join([*row["firing"][:1], *others]), *damage]).strip(", "),
    ]
