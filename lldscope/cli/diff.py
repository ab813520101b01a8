"""`lldscope diff A B`: the step and the signals at which B begins to differ from A."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..core.numbers import short
from ..core.terminal import console, paragraph, plain
from ..runs import open_run
from .shared import RunPath, print_json, print_table


@click.command()
@click.argument("a", type=RunPath())
@click.argument("b", type=RunPath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--all", "every", is_flag=True, help="Include signals that do not differ.")
def diff(a: Path, b: Path, as_json: bool, every: bool) -> None:
    """Show from which step on run B differs from run A by more than A's own noise, by signal, and
    which settings differ.

    Equal steps are compared. Runs of different seeds differ soon; this is for finding the step at
    which a copy of a run departed from it.
    """
    from ..explore.comparison import diff as between

    with open_run(a) as first, open_run(b) as second:
        answer = between(first, second)
    if as_json:
        print_json(answer)
    else:
        _show(answer, every)


def _show(answer: dict[str, Any], every: bool) -> None:
    from ..explore.comparison import sentence

    first, second = names = [plain(run["run"]) for run in answer["runs"]]
    signals, out = answer["signals"], console()
    words = sentence(first, second, [(s["signal"], s["step"]) for s in signals])
    out.print(paragraph(out, words), end="\n\n")
    if answer["settings"]:
        rows = [[s["setting"], *s["values"]] for s in answer["settings"]]
        print_table(["setting", *names], rows, wide=False)
    else:
        click.echo("No setting differs.")
    click.echo()
    entries = signals if every else [s for s in signals if s["step"] is not None]
    if not entries:
        return
    head = ["signal", "from step", *names, "sd apart", "unequal from"]
    rows = [
        [s["signal"], s["step"], short(s["first"]), short(s["second"]), short(s["sigmas"]),
         s["differs"]]
        for s in entries
    ]
    print_table(head, rows, right=range(1, len(head)))
