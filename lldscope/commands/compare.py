"""`lldscope compare RUN RUN …`: signals, phases and alarms side by side."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from . import Place, complain
from .check import arl_option


@click.command()
@click.argument("runs", metavar="RUN RUN …", nargs=-1, required=True, type=Place())
@click.option(
    "--align",
    type=click.Choice(["step", "tokens", "onset"]),
    default="step",
    show_default=True,
    help="What --every counts: steps, tokens trained on, or steps since the likelihood of correct "
    "responses began to fall.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0, min_open=True),
    help="Values at multiples of this. [default: at each run's start, best reward and end]",
)
@click.option("--signals", metavar="NAME,…", help="Only these. [default: the main ones]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@arl_option
def compare(
    runs: tuple[Path, ...], align: str, every: float | None, signals: str | None, as_json: bool,
    arl: float | None,
) -> None:  # fmt: skip
    """Put up to 20 runs side by side: verdicts, phases, alarms, and signals at matched points.

    Values are means over the last ten measured steps; differences are to the first run.
    """
    from ..comparison import COMPARED
    from ..comparison import compare as side_by_side
    from ..runs import open_run
    from ..store import to_json

    if len(runs) < 2:
        raise click.UsageError("Name two runs or more; `lldscope check` looks at one.")
    if align != "step" and every is None:
        raise click.UsageError(f"Say the spacing with --every, in {align_unit(align)}.")
    wanted = COMPARED if signals is None else [name.strip() for name in signals.split(",")]
    with ExitStack() as stack:
        opened = [stack.enter_context(open_run(run)) for run in runs]
        answer = side_by_side(opened, align, every, wanted, arl)
        damaged = {f"{r.name}: {part}": why for r in opened for part, why in r.damaged.items()}
    if as_json:
        click.echo(to_json(answer, indent=1))
    else:
        _show(answer)
    complain(damaged)


def align_unit(align: str) -> str:
    return "tokens" if align == "tokens" else "steps"


def _show(answer: dict[str, Any]) -> None:
    from ..terminal import console

    out = console(wide=True)
    out.print(_runs(answer))
    out.print()
    out.print(_signals(answer))


def _runs(answer: dict[str, Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    from ..terminal import VERDICT_STYLE, plain

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("run", "verdict", "evidence", "fall from", "phases", "alarms"):
        table.add_column(name)
    for run in answer["runs"]:
        phases = " → ".join(f"{p['phase'] or '–'} {p['start_step']}–{p['end_step']}"
                            for p in run["phases"])  # fmt: skip
        alarms = ", ".join(f"{a['rule']} {'' if a['step'] is None else a['step']}".strip()
                           for a in run["alerts"])  # fmt: skip
        verdict = Text(run["verdict"], VERDICT_STYLE[run["verdict"]])
        table.add_row(
            plain(run["label"]), verdict, run["evidence"],
            "–" if run["onset"] is None else str(run["onset"]), phases or "–", plain(alarms) or "–",
        )  # fmt: skip
    return table


def _signals(answer: dict[str, Any]) -> Any:
    """A row per signal and point, a column per run, and the difference where there are two."""
    from rich.table import Table

    from ..terminal import number, plain

    two = len(answer["runs"]) == 2
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("signal")
    table.add_column("at" if answer["every"] is None else answer["align"], justify="right")
    for run in answer["runs"]:
        table.add_column(plain(run["label"]), justify="right")
    if two:
        table.add_column("difference", justify="right")
    for of in answer["signals"]:
        for i, point in enumerate(answer["points"]):
            values = [number(v, 3) for v in of["values"][i]]
            gap = of["differences"][i][-1]
            last = ["–" if gap is None else f"{gap:+.3g}"] if two else []
            name = f"{of['signal']}, {of['unit']}" if of["unit"] else of["signal"]
            place = point if isinstance(point, str) else f"{point:,g}"
            table.add_row(name if i == 0 else "", place, *values, *last)
    return table
