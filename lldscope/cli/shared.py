"""Shared by commands: the type of RUN, common options, tables, warnings about damage."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..core.errors import LldscopeError
from ..core.palette import NO_ALARM, VERDICTS
from ..core.terminal import console, plain
from ..storage.url import Url, place_of

NAME_WIDTH = 32  # characters of a name in a table


class RunPath(click.Path):
    """A folder, or an address that fsspec knows, such as s3://bucket/run. The shell completes the
    names of folders."""

    def __init__(self) -> None:
        super().__init__(file_okay=False)

    def convert(self, value: Any, param: Any, context: Any) -> Any:
        return place_of(value)


NO_RUNS = """\
To record one, add two lines to your TRL script, before trainer.train():
  from lldscope.integrations.trl import instrument
  instrument(trainer, "runs/mine")
Other trainers: docs/integrations.md. From a log: lldscope import LOG --to runs/mine
Or train a tiny policy here, in front of the dashboard: lldscope demo"""


def here(root: Any) -> Any:
    """The folder of runs if none is named: `runs`, or the current one if it holds runs. Raises
    LldscopeError, which says what to type, if there is neither."""
    from ..runs import find_runs

    if root is not None:
        return root
    if Path("runs").is_dir():
        return Path("runs")
    if next(iter(find_runs(Path())), None) is not None:
        return Path()
    raise LldscopeError(f"There is no folder runs here yet.\n{NO_RUNS}")


class LocalRun(RunPath):
    """A folder. An address is refused; the message says what the command would do there."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self._why = why

    def convert(self, value: Any, param: Any, context: Any) -> Path:
        place = place_of(value)
        if isinstance(place, Url):
            self.fail(f"{place} is on an object store. {self._why}", param, context)
        return place


def arl_option(default: str = "20 × the planned length, or 2000") -> Any:
    """The option --arl; None if it is not given. `default` is the help's text for that case."""
    return click.option(
        "--arl",
        type=click.FloatRange(min=10),
        metavar="STEPS",
        help="Minimum mean number of steps between false decay alarms.",
        show_default=default,
    )


rules_option = click.option(
    "--rules",
    type=click.Path(path_type=Path),
    help="File of your own rules; `lldscope rules test` checks it.",
)


fail_on_option = click.option(
    "--fail-on",
    type=click.Choice(["warning", "critical"]),
    default="warning",
    help="The least severe state with a non-zero exit code.",
)


def print_json(answer: Any) -> None:
    from ..storage.json_files import to_json

    click.echo(to_json(answer, indent=1))


def print_table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], right: Container[int] = (),
    wide: bool = True,
) -> None:
    """A table on stdout. Cells are `rich.text.Text`, or text that is made safe to print here; None
    becomes a dash. Names in `head` are safe already. `right` are the columns of numbers. A table
    that is not `wide` fits the terminal: long cells go on in the next line. Names, in the first
    column, are cut: the rest of a name in a line of its own could pass for a message."""
    from rich.console import JustifyMethod
    from rich.table import Table
    from rich.text import Text

    cells = [
        [cell if isinstance(cell, Text) else "–" if cell is None else plain(cell) for cell in row]
        for row in rows
    ]
    names = min(NAME_WIDTH, max((len(str(name)) for name, *_ in [head, *cells]), default=0))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for i, name in enumerate(head):
        justify: JustifyMethod = "right" if i in right else "left"
        is_name = i == 0 and not wide
        table.add_column(name, justify=justify, overflow="ellipsis" if is_name else "fold",
                         no_wrap=wide or is_name, width=names if is_name else None)
    for row in cells:
        table.add_row(*row)
    console(wide=wide).print(table, soft_wrap=wide)


def progress(
    items: Sequence[Any] | None = None, length: int | None = None, hidden: bool = False
) -> Any:
    """click's bar over the items or up to a length, on stderr where that is a terminal."""
    hidden = hidden or not sys.stderr.isatty()
    return click.progressbar(items, length, file=sys.stderr, hidden=hidden)


def verdict_text(verdict: str, word: str) -> Any:
    """A verdict's word in its colour; any other word has no colour."""
    from rich.text import Text

    sign = VERDICTS[verdict]
    return Text(word, (sign if word == sign.word else NO_ALARM).style)


def warn_of_damage(
    damaged: Mapping[str, str],
    drops: Mapping[str, int] | None = None,
    unclear: Mapping[str, str] | None = None,
) -> None:
    """Print damage of the log to stderr, whatever the format of the data."""
    for part, wrong in damaged.items():
        click.echo(f"lldscope: {plain(part)} is damaged and left out: {plain(wrong)}.", err=True)
    for what, why in (unclear or {}).items():
        click.echo(f"lldscope: not known: {what} ({why}).", err=True)
    for what, count in (drops or {}).items():
        click.echo(f"lldscope: the recorder dropped {count} × {plain(what)}.", err=True)
