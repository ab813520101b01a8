"""`lldscope query RUN SQL`: what no other command foresaw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("sql")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per row.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV with a header line.")
def query(run: Path, sql: str, as_json: bool, as_csv: bool) -> None:
    """Run one SELECT over the tables and views of RUN.

    Tables: steps, updates, responses, actions, tokens, evals, probes (the last attempt where steps
    overlap), all_steps … all_probes (every attempt). Views: signals, action_signals and those they
    are built from. The run is never changed.

    \b
    lldscope query runs/a "SELECT step, reward, delta_correct FROM signals LIMIT 5"
    """
    from ..errors import UsageError
    from ..runs import open_run
    from ..store import to_json

    if as_json and as_csv:
        raise UsageError("Choose one of --json and --csv.")
    frame = open_run(run).sql(sql)
    if as_csv:
        click.echo(frame.to_csv(index=False), nl=False)
    elif as_json:
        for row in frame.astype(object).where(frame.notna(), None).to_dict("records"):
            click.echo(to_json(row))
    else:
        _show(frame)


def _show(frame: Any) -> None:
    from rich.table import Table

    from ..terminal import console, plain

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in frame.columns:
        numeric = frame[name].dtype.kind in "iuf"
        table.add_column(plain(name), justify="right" if numeric else "left")
    for row in frame.itertuples(index=False):
        table.add_row(*(_cell(value) for value in row))
    console(wide=True).print(table)


def _cell(value: Any) -> str:
    from ..terminal import plain

    # str first: comparing pandas' NA, a NULL among booleans, has no truth value.
    if value is None or str(value) == "<NA>" or value != value:
        return "–"
    return f"{value:.5g}" if isinstance(value, float) else plain(value)
