"""`lldscope query RUN SQL`: one SELECT over the tables of a run."""

from __future__ import annotations

import csv
import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import UsageError
from ..core.numbers import short
from ..core.safe_text import FORMULA
from ..core.terminal import plain
from ..runs import open_run
from ..storage.json_files import to_json
from .shared import RunPath, print_table, warn_of_damage

if TYPE_CHECKING:
    from ..query.sandbox import Answer
    from ..run import Run

_GRACE = 10.0  # seconds that a stopped query has to stop
_CELL = 10_000  # characters of a cell in a table
_NUMBERS = re.compile(r"[A-Z]*INT(EGER)?|FLOAT|DOUBLE|DECIMAL\(.*\)")  # types of DuckDB


@click.command()
@click.argument("run", type=RunPath())
@click.argument("sql")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per row.")
@click.option(
    "--csv", "as_csv", is_flag=True,
    help="CSV with a header line; an apostrophe precedes text that a spreadsheet would compute.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=60.0,
    metavar="SECONDS",
    help="Stop a query that takes longer, output included.",
)
def query(run: Path, sql: str, as_json: bool, as_csv: bool, timeout: float) -> None:
    """Run one SELECT over the tables and views of RUN.

    Tables: steps, updates, responses, actions, tokens, retention, evals, eval_questions, probes,
    scalars (the last attempt where steps overlap), all_steps … all_scalars (every attempt),
    attempts. Views: signals, action_signals and those they are built from. The run is never
    changed.

    \b
    lldscope query runs/a "SELECT step, reward FROM signals LIMIT 5"
    """
    if as_json and as_csv:
        raise UsageError("Choose one of --json and --csv.")
    with open_run(run) as reader:
        last_resort = _end_this_process_after(timeout + _GRACE, timeout)
        try:
            answer = _answer(reader, sql, timeout)
            if as_csv:
                _write_csv(answer)
            elif as_json:
                for row in answer.rows:
                    click.echo(to_json(dict(zip(answer.names, row, strict=True))))
            else:
                numbers = [i for i, kind in enumerate(answer.types) if _NUMBERS.fullmatch(kind)]
                rows = ([*map(_cell, row)] for row in answer.rows)
                print_table([plain(name) for name in answer.names], rows, numbers)
        except RecursionError:
            raise UsageError("The answer is nested too deeply: unnest it.") from None
        finally:
            last_resort.cancel()
        damaged, unclear = reader.damaged, reader.unclear
    warn_of_damage(damaged, unclear=unclear)


def _answer(run: Run, sql: str, timeout: float) -> Answer:
    """The answer, computed in a thread: DuckDB notices a Ctrl-C only between long pieces of work,
    but another thread can stop it at once."""
    with ThreadPoolExecutor(1) as worker:
        future = worker.submit(run.rows, sql, timeout)
        try:
            return future.result()
        except KeyboardInterrupt:
            run.interrupt()
            raise


def _end_this_process_after(seconds: float, limit: float) -> threading.Timer:
    """End the process after a delay: DuckDB's interrupt does not stop a function that makes one
    giant value."""

    def end() -> None:
        message = f"lldscope: the query took longer than {limit:g} s and did not stop when asked."
        click.echo(message, err=True)
        sys.stderr.flush()
        os._exit(2)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


def _write_csv(answer: Answer) -> None:
    """NULL is empty; NaN and Inf are `nan`, `inf` and `-inf`, as `lldscope export` writes them."""
    import numpy as np

    # A FLOAT gets only the digits that it has.
    singles = [i for i, kind in enumerate(answer.types) if kind == "FLOAT"]
    lines = StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(answer.names)
    for row in answer.rows:
        cells = list(row)
        for i in singles:
            cells[i] = None if row[i] is None else np.float32(row[i])
        writer.writerow(
            f"'{c}" if isinstance(c, str) and re.match(FORMULA, c) else c for c in cells
        )
    click.echo(lines.getvalue(), nl=False)


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, float):
        text = str(value)
        return text if len(text) <= _CELL else f"{text[:_CELL]}… ({len(text):,} characters)"
    return "nan" if value != value else short(value, 5)
