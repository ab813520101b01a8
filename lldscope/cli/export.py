"""`lldscope export RUN --to FOLDER`: tables and signals as plain files for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from ..runs import open_run
from .shared import RunPath, print_json, print_table, warn_of_damage


@click.command()
@click.argument("run", type=RunPath())
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Where to write; created if missing.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "csv"]),
    default="parquet",
    help="Format of the files.",
)
@click.option(
    "--tables",
    metavar="NAME,…",
    help="Only these; all_steps … all_scalars include superseded attempts. [default: every table "
    "and signal view that has rows]",
)
@click.option("--json", "as_json", is_flag=True, help="List the files as one JSON array.")
def export(run: Path, folder: Path, kind: str, tables: str | None, as_json: bool) -> None:
    """Write the tables and signals of RUN into FOLDER, one file each.

    Where attempts overlap, the rows of the last one are written. No file is overwritten. In CSV a
    NULL is an empty field, and text that a spreadsheet would compute gets an apostrophe.
    """
    from ..explore.export import export_run

    table_names = None if tables is None else [name.strip() for name in tables.split(",")]
    with open_run(run) as reader:
        exports = export_run(reader, folder, kind, table_names)
        damaged, unclear = reader.damaged, reader.unclear
    if as_json:
        print_json(exports)
    else:
        rows = [(row["file"], f"{row['rows']:,}", f"{row['bytes']:,}") for row in exports]
        print_table(("file", "rows", "bytes"), rows, right=(1, 2))
    warn_of_damage(damaged, unclear=unclear)
