"""`lldscope report RUN -o FILE.html`: what happened in a run, what it cost, what to change."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from . import Place, complain
from .check import arl_option, rules_option

SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".json": "json"}


@click.command()
@click.argument("run", type=Place())
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write; an old file is replaced. [default: stdout]",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["html", "md", "json"]),
    help="[default: by the file's name; html]",
)
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
    from ..errors import LldscopeError
    from ..postmortem import post_mortem
    from ..runs import open_run
    from ..store import replace_file, to_json
    from ..user_rules import all_rules

    kind = kind or (SUFFIXES.get(file.suffix.lower()) if file else None) or "html"
    if kind == "html" and file is None and sys.stdout.isatty():
        raise click.UsageError("HTML is for a browser: name a file, as in -o report.html.")
    if file is not None and not file.parent.is_dir():
        raise LldscopeError(f"There is no folder {file.parent}; make it first.")
    with open_run(run) as opened:
        facts = post_mortem(opened, arl, all_rules(rules))
    if kind == "json":
        text = to_json(facts, indent=1) + "\n"
    elif kind == "md":
        from ..postmortem.markdown import markdown

        text = markdown(facts)
    else:
        from ..postmortem.html import html

        text = html(facts)
    if file is None:
        click.echo(text, nl=False)
    else:
        replace_file(file, text)
        click.echo(f"lldscope: wrote {file} ({len(text.encode()) / 1000:,.0f} kB)", err=True)
    complain(facts["damaged"], facts["dropped"])
