"""`lldscope blame RUN`: which part of an update lowered the likelihood of correct responses."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lldscope import open_run
from lldscope.storage import json_files

if TYPE_CHECKING:
    from .answer import BlameAnswer

FOLDER = "blame"
"""The answer's folder in a run directory; `lldscope.explore.experiments` reads `step-STEP.json`."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=0),
              help="By default the one with the lowest Δ after a checkpoint.")
@click.option("--draws", type=click.IntRange(min=0), default=8, show_default=True,
              help="New batches to sample with the same weights, for the intervals: at least 6, or "
                   "0 for a quick look at the recorded batch.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def blame(run: Path, step: int | None, draws: int, as_json: bool) -> None:
    """Run one recorded update again, each time with one thing changed.

    The step is replayed in a temporary folder, from the newest checkpoint at or before it (such as
    `checkpoint_every` makes). Then its update is made again from the same weights with one thing
    changed, on the recorded batch and on --draws new ones. An answer with new batches is also kept
    in RUN/blame/step-STEP.json, for the run's page and its report.

    Exit code: 0 answered; 1 internal or I/O error, 2 what cannot be replayed.
    """
    from rich.console import Console
    from rich.progress import Progress

    open_run(run).close()  # before torch loads
    from .experiment import blame as ask

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        tasks = {name: bar.add_task(name, total=None) for name in ("replay", "variants")}
        answer = ask(run, step, draws, lambda name, done, total: bar.update(
            tasks[name], completed=done, total=total))
    text = answer.to_json()
    try:
        if draws:  # a quick look does not replace a whole answer
            (run / FOLDER).mkdir(exist_ok=True)
            json_files.replace_file(run / FOLDER / f"step-{answer.step}.json", text)
    except OSError as error:
        click.echo(f"warning: the answer could not be kept in {run}: {error.strerror}", err=True)
    if as_json:
        click.echo(text)
    else:
        _show(answer)


def _show(answer: BlameAnswer) -> None:
    if all(answer.replay.values()):
        agreement = "agrees with the record to the bit"
    else:
        unlike = ", ".join(t for t, same in answer.replay.items() if not same)
        agreement = f"differs from the record in {unlike}"
    start = f"Step {answer.step}, from the checkpoint before step {answer.checkpoint}"
    click.echo(fill(f"{start}: the replay {agreement}.") + "\n")
    columns = (
        ("Δ correct", "delta_correct", 10), ("retention", "retention_delta", 10),
        ("probes", "probe_set", 8), ("match", "em_greedy", 7), ("entropy", "entropy", 9),
        ("KL", "kl", 9),
    )
    width = max(len(r.name) for r in answer.variants)
    click.echo(f"{'the recorded batch':{width}}" + "".join(f"{h:>{n}}" for h, _, n in columns))
    for r in answer.variants:
        cells = "".join(f"{_number(r.measures[name], name):>{n}}" for _, name, n in columns)
        click.echo(f"{r.name:{width}}{cells}")
    if answer.draws:
        heads = f"  {'Δ correct [95 %]':22}  difference [95 %]"
        click.echo(f"\n{f'{answer.draws} new batches':{width}}{heads}")
        for r in answer.variants:
            click.echo(f"{r.name:{width}}  {_interval(r.delta):22}  {_interval(r.change)}")
    click.echo("\n" + fill(answer.sentence))


def fill(text: str) -> str:
    return textwrap.fill(text, 79, break_on_hyphens=False)


def _number(value: float | None, name: str) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if name in ("kl", "entropy", "em_greedy") else f"{value:+.3f}"


def _interval(values: tuple[float, float, float] | None) -> str:
    return "–" if values is None else "{:+.2f} [{:+.2f}, {:+.2f}]".format(*values)
