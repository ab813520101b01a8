"""The study: GRPO and LLDS over seeds, controls and variants (docs/research/study.md).

python -m study list      what is done, what is missing, hours to go
python -m study run       make what is missing; Ctrl-C stops, the same command goes on
python -m study report    the tables and pictures of docs/, from the bank
python -m study rescue    from the alarm on, four strategies (docs/research/rescue.md)
python -m study mechanism one update run again (docs/research/mechanism.md)
"""

from __future__ import annotations

import os
import signal
import sys
from statistics import mean
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lldscope.core.errors import LldscopeError
from lldscope.storage.layout import read_manifest

from .arms import BASE, ROOT, Planned, planned
from .bank import index
from .blame_runs import mechanism
from .driver import Job, drive
from .rescue_runs import rescue
from .runs import State, jobs, keep, left_over, state

console = Console(highlight=False, soft_wrap=True)


def _say(text: str) -> None:
    console.print(text, markup=False)


@click.group()
def study() -> None:
    """GRPO and LLDS over seeds, controls and variants (docs/research/study.md)."""


_only = click.option("--only", multiple=True, metavar="ARM", help="This arm only; may be repeated.")
_cores = len(os.sched_getaffinity(0))


@study.command("list")
@_only
def list_(only: tuple[str, ...]) -> None:
    """What is done and what is missing."""
    _show(planned(only))


@study.command()
@_only
@click.option("--jobs", "parallel", default=_cores, show_default=True, help="Runs at a time.")
@click.option("--list", "show", is_flag=True, help="Only say what is done and missing.")
def run(only: tuple[str, ...], parallel: int, show: bool) -> None:
    """Make every run that is missing, one process each, and put it into the bank."""
    runs = planned(only)
    if show:
        _show(runs)
        return
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell's background ignores the latter
        signal.signal(number, signal.default_int_handler)
    states = _states(runs)
    for old_run in left_over(r for r in runs if states[r.name] in ("missing", "outdated")):
        _say(f"{old_run.name}: {keep(old_run)} (made before)")
    states = _states(runs)
    todo = [r for r in runs if states[r.name] in ("missing", "outdated")]
    _say_impossible(runs, states)
    _say(f"{len(todo)} of {len(runs)} runs to make, {parallel} at a time")
    try:
        outcome = _drive(todo, parallel)
    except KeyboardInterrupt:
        _say("stopped; the same command goes on, half-done runs start anew")
        sys.exit(130)
    for name in outcome.left:
        _say(f"{name}: not run, its warm start is missing")
    if outcome.failed:
        _say(f"failed: {', '.join(outcome.failed)}; the next `run` tries them again")
        sys.exit(1)


def _drive(todo: list[Planned], parallel: int) -> Any:
    """With a bar for each run where there is a terminal, otherwise a line for each event."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}"))
    queue = jobs(todo)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        bars: dict[str, Any] = {}
        whole = progress.add_task("study", total=len(queue))

        def tick(running: list[Job]) -> None:
            for name in set(bars) - {job.name for job in running}:
                progress.remove_task(bars.pop(name))
                progress.advance(whole)
            for job in running:
                if job.name not in bars:
                    bars[job.name] = progress.add_task(job.name, total=BASE["steps"])
                if console.is_terminal:
                    progress.update(bars[job.name], completed=_steps(job))

        return drive(queue, parallel, _say, tick)


def _steps(job: Job) -> int:
    """Steps on record; 0 for what records none."""
    if not (job.folder / "run.json").is_file():
        return 0
    parts = [p.last_step + 1 for p in read_manifest(job.folder).parts if p.table == "steps"]
    return max(parts, default=0)


# -- list -----------------------------------------------------------------------------------------


def _states(runs: list[Planned]) -> dict[str, State]:
    lines = _lines(runs)
    return {r.name: state(r, lines.get(r.name)) for r in runs}


def _lines(runs: list[Planned]) -> dict[str, Any]:
    """Run name → its line of the index of its bank."""
    return {name: line for bank in {r.bank for r in runs} for name, line in index(bank).items()}


def _show(runs: list[Planned]) -> None:
    lines, states = _lines(runs), _states(runs)
    for arm in dict.fromkeys(r.arm for r in runs):
        mine = [r for r in runs if r.arm == arm]
        done = [lines[r.name] for r in mine if states[r.name] == "done"]
        dead = sum(line["outcome"] == "collapsed" for line in done)
        parts = [f"{len(done)} of {len(mine)} done, {dead} collapsed"]
        for which in ("missing", "outdated", "impossible"):
            if seeds := [str(r.seed) for r in mine if states[r.name] == which]:
                parts.append(f"{which}: seed {' '.join(seeds)}")
        _say(f"{arm.name:17} {'; '.join(parts)}")
        for r in mine:
            if (note := _failure(r)) and states[r.name] != "done":
                _say(f"{'':17} {r.name} failed: {note}")
    _say_hours(runs, states, lines)


def _failure(r: Planned) -> str:
    note = r.folder.with_name(f"{r.name}.failed")
    return note.read_text("utf-8").strip() if note.is_file() else ""


def _say_hours(runs: list[Planned], states: dict[str, State], lines: dict[str, Any]) -> None:
    """From the finished runs whose time is known: of the arm, or of all where the arm has none."""
    times: dict[str, list[float]] = {}
    for r in runs:
        if states[r.name] == "done" and lines[r.name].get("cpu_seconds"):
            times.setdefault(r.arm.name, []).append(lines[r.name]["cpu_seconds"])
    todo = [r for r in runs if states[r.name] in ("missing", "outdated")]
    every = [s for seconds in times.values() for s in seconds]
    if todo and every:
        hours = sum(mean(times.get(r.arm.name, every)) for r in todo) / 3600
        _say(f"{len(todo)} runs to make: {hours:.1f} core hours, as the others went")
    elif todo:
        _say(f"{len(todo)} runs to make; none is finished to tell the hours from")


def _say_impossible(runs: list[Planned], states: dict[str, State]) -> None:
    arms = {r.arm.name for r in runs if states[r.name] == "impossible"}
    for name in sorted(arms):
        _say(f"{name}: left out, the trainer does not know its settings")


@study.command()
def report() -> None:
    """Write the tables and pictures of study.md and alarm-rates.md in docs/research."""
    from .counts import write_counts
    from .report import write, write_rates, write_summaries

    for file in (*write(), write_rates(), write_counts(), *write_summaries()):
        _say(str(file.relative_to(ROOT)))


study.add_command(mechanism)
study.add_command(rescue)


if __name__ == "__main__":
    os.chdir(ROOT)
    try:
        study()
    except LldscopeError as error:
        click.echo(f"study: {error}", err=True)
        sys.exit(error.exit_code)
