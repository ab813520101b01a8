"""`lldscope diff A B`: from which step on, and in what, B differs from A."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .shared import RunPath, print_json, print_table, secrets_option


@click.command()
@click.argument("a", type=RunPath())
@click.argument("b", type=RunPath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--all", "every", is_flag=True, help="Also the signals that do not differ.")
@secrets_option
def diff(a: Path, b: Path, as_json: bool, every: bool) -> None:
    """Say from where on run B differs from run A, by more than A's own noise, and which settings
    differ.

    Steps are compared with the same steps of the other run. Runs of different seeds soon differ;
    what this finds best is the step at which a copy of a run went another way.
    """
    from ..explore.divergence import diff as between
    from ..runs import open_run

    with open_run(a) as first, open_run(b) as second:
        answer = between(first, second)
    if as_json:
        print_json(answer)
    else:
        _show(answer, every)


def _show(answer: dict[str, Any], every: bool) -> None:
    from ..core.numbers import short
    from ..core.terminal import plain
    from ..explore.divergence import sentence

    first, second = names = [plain(run["run"]) for run in answer["runs"]]
    signals = answer["signals"]
    click.echo(sentence(first, second, [(s["signal"], s["step"]) for s in signals]))
    click.echo()
    if answer["settings"]:
        print_table(["setting", *names], [[s["setting"], *s["values"]] for s in answer["settings"]])
    else:
        click.echo("no setting differs")
    click.echo()
    entries = signals if every else [s for s in signals if s["step"] is not None]
    if not entries:
        return
    head = ["signal", "from step", *names, "in sd", "unequal from"]
    rows = [
        [s["signal"], _or_dash(s["step"]), short(s["first"]), short(s["second"]),
         short(s["sigmas"]), _or_dash(s["differs"])]
        for s in entries
    ]
    print_table(head, rows, right=range(1, len(head)))


def _or_dash(step: int | None) -> str:
    return "–" if step is None else str(step)
