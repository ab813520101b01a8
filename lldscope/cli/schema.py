"""`lldscope schema [TABLE]`: the registry, for people and for programs."""

from __future__ import annotations

from typing import Any

import click

from .shared import print_json


@click.command()
@click.argument("table", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--markdown", is_flag=True, help="As in docs/schema.md.")
def schema(table: str | None, as_json: bool, markdown: bool) -> None:
    """Show tables and columns: type, unit, meaning. NULL means not measured."""
    from ..core.errors import UsageError
    from ..core.schema import SCHEMA_VERSION, TABLES, VIEWS

    catalog = TABLES | VIEWS
    if table is not None and table not in catalog:
        raise UsageError(f"There is no table {table}. There are: {', '.join(catalog)}.")
    selection = {table: catalog[table]} if table else catalog
    if as_json:
        tables = {name: _plain_table(t) for name, t in selection.items()}
        print_json({"schema": SCHEMA_VERSION, "tables": tables})
    elif markdown:
        for t in selection.values():
            click.echo(_markdown(t))
    else:
        _show(selection)


def _plain_table(t: Any) -> dict[str, Any]:
    columns = [
        {"name": c.name, "type": str(c.arrow), "unit": c.unit, "nullable": not c.required,
         "meaning": c.meaning}
        for c in t.columns
    ]
    return {"grain": t.grain, "columns": columns}


def _markdown(t: Any) -> str:
    rows = [
        f"| `{c.name}` | {c.arrow} | {c.unit} | {'' if c.required else 'yes'} | {c.meaning} |"
        for c in t.columns
    ]
    head = ["| column | type | unit | nullable | meaning |", "|---|---|---|---|---|"]
    return "\n".join(
        [f"## {t.name}", "", f"{t.grain[0].upper()}{t.grain[1:]}.", "", *head, *rows, ""]
    )


def _show(selection: dict[str, Any]) -> None:
    from rich.table import Table

    from ..core.terminal import console

    out = console()
    for t in selection.values():
        out.print(t.name, style="bold", end="  ")
        out.print(t.grain, style="dim")
        table = Table(box=None, pad_edge=False, show_header=False)
        for column in t.columns:
            table.add_row(f"  {column.name}", str(column.arrow), column.unit, column.meaning)
        out.print(table)
