"""`lldscope report RUN -o FILE.html`: what happened in a run, what it cost, what to change."""

from __future__ import annotations

from pathlib import Path

import click

from .documents import document_options, form_of, write_document
from .shared import RunPath, arl_option, rules_option, warn_of_damage


@click.command()
@click.argument("run", type=RunPath())
@document_options("html")
@arl_option
@rules_option
def report(
    run: Path, file: Path | None, kind: str | None, arl: float | None, rules: Path | None
) -> None:
    """Write the post-mortem of RUN: phases, alarms and the time they left, what lost likelihood,
    look-alikes, what to change next, and what the log cannot tell.

    The HTML is one file that opens from disk and loads nothing. A run that lives is told as of its
    last row, one that is well as well.
    """
    from ..alarms.user_rules import all_rules
    from ..report import post_mortem
    from ..runs import open_run

    kind = form_of(file, kind)
    with open_run(run) as opened:
        facts = post_mortem(opened, arl, all_rules(rules))
    write_document(facts, kind, file)
    warn_of_damage(facts.state.damaged, facts.state.dropped)
