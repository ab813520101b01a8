"""`lldscope acknowledge RUN RULE`: an alarm is known, or is to be quiet for a while."""

from __future__ import annotations

import time
from pathlib import Path

import click

from .shared import LocalRun


def _rules(word: str) -> list[str]:
    """For the shell: the rules whose names begin so."""
    from ..diagnosis.registry import RULES, STALLED

    return [rule.id for rule in (*RULES, STALLED) if rule.id.startswith(word)]


@click.command()
@click.argument("run", type=LocalRun("What people say is kept in a run's folder only."))
@click.argument("rule", shell_complete=lambda _, __, word: _rules(word))
@click.option(
    "--for",
    "hours",
    type=click.FloatRange(min=0, min_open=True),
    metavar="HOURS",
    help="Only for so long (snooze). [default: until it fires anew]",
)
@click.option("--undo", is_flag=True, help="It is to be heard again.")
def acknowledge(run: Path, rule: str, hours: float | None, undo: bool) -> None:
    """Say that the alarm RULE of RUN is known.

    It goes on firing and counts in the verdict, but `watch` does not send it again, and the
    dashboard marks it. It is kept with the run, in notes.jsonl, and holds for this episode: when
    the alarm is resolved and fires anew, it is heard again.
    """
    from ..core.errors import UsageError
    from ..monitor.health import check
    from ..runs import open_run
    from ..storage.notes import write_note

    if undo and hours is not None:
        raise click.UsageError("--undo and --for exclude each other.")
    with open_run(run) as reader:
        firing = {a.rule: a.episodes[-1][0] for a in check(reader).firing}
    if rule not in firing:
        rules = ", ".join(firing) or "none"
        raise UsageError(f"No alarm {rule} fires in {run}. Firing now: {rules}.")
    kind = "heard" if undo else "acknowledge" if hours is None else "snooze"
    until = None if hours is None else time.time() + 3600 * hours
    write_note(run, kind, rule, firing[rule], until)
    quiet = "is acknowledged" if hours is None else f"is quiet for {hours:g} h"
    click.echo(f"{rule} {'is heard again' if undo else quiet}", err=True)
