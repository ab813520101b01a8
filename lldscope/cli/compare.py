"""`lldscope compare RUN RUN …`: runs side by side, as a table, as data or as a report."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from ..core.numbers import short
from ..core.palette import PHASES
from ..core.terminal import plain
from ..runs import find_runs, open_run
from .report import form_of, format_option, output_option, write_document
from .shared import RunPath, arl_option, print_table, rules_option, verdict_text, warn_of_damage

MOST_FITTING = 4  # runs whose values stand side by side in 80 columns


@click.command()
@click.argument("runs", metavar="RUN RUN …", nargs=-1, required=True, type=RunPath())
@click.option(
    "--align",
    type=click.Choice(["step", "tokens", "onset"]),
    default="step",
    help="Unit of --every: steps, tokens trained on, or steps since the likelihood of correct "
    "responses began to fall.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Values at multiples of N. [default: at each run's start, best reward and end]",
)
@click.option("--signals", metavar="NAME,…", help="Only these. [default: the main ones]")
@click.option("--json", "as_json", is_flag=True, help="The table as one JSON object on stdout.")
@output_option
@format_option("the table on the terminal")
@arl_option()
@rules_option
def compare(
    runs: tuple[Path, ...], align: str, every: float | None, signals: str | None, as_json: bool,
    file: Path | None, kind: str | None, arl: float | None, rules: Path | None,
) -> None:
    """Show up to 20 runs side by side: verdicts, phases, alarms, and signals at matched points.
    A folder stands for the runs in it.

    Values are means over the last ten measured steps. For two runs the difference is shown.

    With -o or --format, write it as a report with charts; in these the runs of a folder, such as
    seeds, are averaged.
    """
    from ..explore.comparison import compare as side_by_side
    from ..user_rules.user_rules import all_rules

    if as_json and (file is not None or kind is not None):
        raise click.UsageError("--json goes to stdout; for a file, name it: -o FILE.json.")
    kind = form_of(file, "json" if as_json else kind) if as_json or file or kind else None
    if align != "step" and every is None:
        unit = "tokens" if align == "tokens" else "steps"
        raise click.UsageError(f"Set the spacing with --every, in {unit}.")
    places = [find_runs(place) or [place] for place in runs]  # opening a path without a run raises
    if sum(map(len, places)) < 2:
        raise click.UsageError("Name two runs or more; `lldscope check` looks at one.")
    names = None if signals is None else [name.strip() for name in signals.split(",")]
    chosen_rules = all_rules(rules)
    with ExitStack() as stack:
        short = [place.name for place in runs]
        folders = short if len({*short}) == len(runs) else map(str, runs)
        groups = [
            (name, [stack.enter_context(open_run(run)) for run in of])
            for name, of in zip(folders, places, strict=True)
        ]
        all_runs = [run for _, of in groups for run in of]
        damaged = {f"{r.name}: {part}": why for r in all_runs for part, why in r.damaged.items()}
        answer = side_by_side(all_runs, align, every, names, arl, chosen_rules)
        if kind is None:
            _show(answer)
        else:
            from ..report.comparison import document

            write_document(
                lambda: answer, lambda: document(answer, groups, arl, chosen_rules), kind, file
            )
    warn_of_damage(damaged)


def _run(run: dict[str, Any]) -> list[Any]:
    phases = " → ".join(f"{PHASES[p['phase']].word} {p['start_step']}–{p['end_step']}"
                        for p in run["phases"] if p["phase"])
    worst = [f"{a['rule']} {'' if a['step'] is None else a['step']}".strip()
             for a in run["alerts"][:1]]
    more = [f"+{len(run['alerts']) - 1}"] if len(run["alerts"]) > 1 else []
    verdict = verdict_text(run["verdict"], run["verdict_word"])
    alarms = " ".join([*worst, *more])
    return [run["label"], verdict, run["onset"], phases or None, alarms or None]


def _show(answer: dict[str, Any]) -> None:
    """The table of runs. Then that of signals: a row per signal and point, a column per run, and
    the difference of two runs."""
    columns = ("run", "verdict", "fall from", "phases", "alarms")
    print_table(columns, map(_run, answer["runs"]), wide=False)
    click.echo()
    labels = [plain(run["label"]) for run in answer["runs"]]
    two = len(labels) == 2
    head = ["signal", "at" if answer["every"] is None else answer["align"], *labels]
    head += ["difference"] if two else []
    rows = []
    for of in answer["signals"]:
        unit = "" if of["unit"] in ("", of["signal"]) else f", {of['unit']}"
        name = f"{of['signal']}{unit}"
        points = zip(answer["points"], of["values"], of["differences"], strict=True)
        for i, (point, values, (*_, gap)) in enumerate(points):
            place = point if isinstance(point, str) else f"{point:,.10g}"
            last = [_difference(gap)] if two else []
            rows.append([name if i == 0 else "", place, *map(short, values), *last])
    # Columns beyond the width of a terminal are readable only uncut.
    print_table(head, rows, range(1, len(head)), wide=len(labels) > MOST_FITTING)
    for of in answer["signals"]:
        there = [any(v is not None for v in column) for column in zip(*of["values"], strict=True)]
        ways = {label: way or "as lldscope measures it" for label, way, is_there
                in zip(labels, of["estimators"], there, strict=True) if is_there}
        if len({*ways.values()}) > 1:
            text = "; ".join(f"{label}: {plain(way)}" for label, way in ways.items())
            click.echo(f"{of['signal']} is not one quantity in these runs: {text}.")


def _difference(value: float | None) -> str:
    return f"+{short(value)}" if value is not None and value >= 0 else short(value)
