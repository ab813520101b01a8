"""`lldscope schema [TABLE]`: print the registry of columns, or the atlas of a trainer's metrics."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import Any

import click

from ..core.atlas import of_trainer, trainers
from ..core.errors import UsageError
from ..core.schema import SCHEMA_VERSION, TABLES, VIEWS
from ..core.terminal import console
from .shared import print_json


@click.command()
@click.argument("table", required=False)
@click.option("--trainer", metavar="NAME", help="Show what this trainer's metrics mean instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def schema(table: str | None, trainer: str | None, as_json: bool) -> None:
    """Show tables and columns: type, unit, meaning. NULL means not measured."""
    if trainer is not None:
        if table is not None:
            raise UsageError("Name a table or a trainer, not both.")
        _show_metrics(trainer.casefold(), as_json)
        return
    catalog = TABLES | VIEWS
    if table is not None and table not in catalog:
        raise UsageError(f"There is no table {table}. There are: {', '.join(catalog)}.")
    selection = {table: catalog[table]} if table else catalog
    if as_json:
        tables = {name: _plain_table(t) for name, t in selection.items()}
        print_json({"schema": SCHEMA_VERSION, "tables": tables})
    else:
        _show(selection)


def _plain_table(t: Any) -> dict[str, Any]:
    columns = [
        {"name": c.name, "type": c.arrow, "unit": c.unit, "nullable": not c.required,
         "meaning": c.meaning}
        for c in t.columns
    ]
    return {"grain": t.grain, "columns": columns}


def _show(selection: dict[str, Any]) -> None:
    from rich.table import Table

    out = console()
    for t in selection.values():
        out.print(t.name, style="bold", end="  ")
        out.print(t.grain, style="dim")
        table = Table(box=None, pad_edge=False, show_header=False)
        for column in t.columns:
            table.add_row(f"  {column.name}", column.arrow, column.unit, column.meaning)
        out.print(table)


def _show_metrics(trainer: str, as_json: bool) -> None:
    """What the metrics of a trainer are."""
    metrics = of_trainer(trainer)
    if not metrics:
        raise UsageError(f"The atlas knows no {trainer}; it has: {', '.join(trainers())}.")
    if as_json:
        print_json({"schema": SCHEMA_VERSION, "metrics": [asdict(m) for m in metrics]})
        return
    out = console()
    for source, group in groupby(metrics, key=lambda m: m.source):
        out.print(source, style="bold")
        for m in group:
            stands = f"  → {m.signal}" if m.signal else ""
            out.print(f"  {m.key}{stands}", style="bold")
            for text in (
                ", over ".join(filter(None, (m.quantity, m.over))) + (m.unit and f" [{m.unit}]"),
                m.differs, m.caution,
            ):
                if text:
                    out.print(f"    {text}", style="dim")
