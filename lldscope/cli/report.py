"""`lldscope report RUN -o FILE.html`: what happened in a run, what it cost, what to change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import LldscopeError
from ..runs import open_run
from ..storage.json_files import replace_file, to_json
from .shared import RunPath, arl_option, rules_option, warn_of_damage

if TYPE_CHECKING:
    from ..report.blocks import Document

SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".json": "json"}

output_option = click.option(
    "-o", "--output", "file", type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; an existing one is replaced. [default: stdout]",
)


def format_option(default: str) -> Any:
    """The option --format; `default` is the help's text for output without a file's name."""
    return click.option(
        "--format", "kind", type=click.Choice([*dict.fromkeys(SUFFIXES.values())]),
        help=f"[default: by the file's name; {default}]",
    )


def form_of(file: Path | None, kind: str | None) -> str:
    """The format, by the option or by the file's name. Raises if it does not suit the file."""
    if kind is None and file is not None and file.suffix.lower() not in (*SUFFIXES, ""):
        raise click.UsageError(
            f"{file.name}: a report is .html, .md or .json; --format writes one under any name. "
            "For a PDF print the HTML from a browser."
        )
    kind = kind or (SUFFIXES.get(file.suffix.lower()) if file else None) or "html"
    if kind == "html" and file is None and sys.stdout.isatty():
        raise click.UsageError("HTML is for a browser: name a file, as in -o report.html.")
    if file is not None and not file.parent.is_dir():
        raise LldscopeError(f"There is no folder {file.parent}; create it first.")
    return kind


def write_document(
    data: Callable[[], Any], document: Callable[[], Document], kind: str, file: Path | None
) -> None:
    """JSON of the data, or the document in Markdown or HTML, to a file or to stdout."""
    if kind == "json":
        text = to_json(data(), indent=1) + "\n"
    elif kind == "md":
        from ..report.markdown import markdown

        text = markdown(document())
    else:
        from ..report.html import html

        text = html(document())
    if file is None:
        click.echo(text, nl=False)
    else:
        try:
            replace_file(file, text)
        except OSError as error:
            raise LldscopeError(f"{file} cannot be written ({error.strerror or error}).") from error
        click.echo(f"lldscope: wrote {file} ({len(text.encode()) / 1000:,.0f} kB)", err=True)


@click.command()
@click.argument("run", type=RunPath())
@output_option
@format_option("html")
@arl_option()
@rules_option
def report(
    run: Path, file: Path | None, kind: str | None, arl: float | None, rules: Path | None
) -> None:
    """Write the post-mortem of RUN: what is wrong and what to change, when it began and when it
    was seen, what lost likelihood, and what the log cannot tell.

    The HTML is one file that opens from disk and loads nothing. Healthy and running runs have a
    report, too, as of their last row.
    """
    from ..report import post_mortem
    from ..report.document import document
    from ..user_rules.user_rules import all_rules

    kind = form_of(file, kind)
    with open_run(run) as reader:
        facts = post_mortem(reader, arl, all_rules(rules))
    write_document(facts.to_dict, lambda: document(facts), kind, file)
    warn_of_damage(facts.state.damaged, facts.state.dropped)
