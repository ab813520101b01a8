"""`lldscope acknowledge RUN RULE`: no more notifications of an alarm, for good or for a while."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ..core.errors import UsageError
from ..runs import open_run
from ..storage.notes import write_note
from .shared import LocalRun


def _rules(word: str) -> list[str]:
    """For the shell: the rules whose names begin like this."""
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
    help="Snooze: only for this long. [default: until it fires again]",
)
@click.option("--undo", is_flag=True, help="Remove the acknowledgement.")
def acknowledge(run: Path, rule: str, hours: float | None, undo: bool) -> None:
    """Acknowledge the alarm RULE of RUN: `watch` sends no more notifications of it.

    It keeps firing and counts in the verdict; the dashboard marks it as acknowledged. When it is
    resolved and fires again, notifications resume. Stored in the run's notes.jsonl.
    """
    from ..monitor.health import check

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
    done = "acknowledged" if hours is None else f"snoozed for {hours:g} h"
    click.echo(f"{rule}: {'acknowledgement removed' if undo else done}", err=True)
