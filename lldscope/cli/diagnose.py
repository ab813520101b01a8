"""`lldscope diagnose SOURCE…`: what any log says of its run, with nothing to name."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .shared import exit_options, print_json

if TYPE_CHECKING:
    from ..report import PostMortem

LISTED = 5  # sentences of a kind, in the terminal and as JSON


@click.command()
@click.argument("source", nargs=-1, required=True)
@click.option("--run", "run_name", metavar="NAME", help="Which run of a store that holds several.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option(
    "-o", "--output", "file", type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the whole post-mortem: .html, .md or .json.",
)
@click.option(
    "--cost-per-hour", type=click.FloatRange(min=0), metavar="PRICE",
    help="What an hour of the run costs.",
)
@exit_options
def diagnose(
    source: tuple[str, ...], run_name: str | None, as_json: bool, file: Path | None,
    cost_per_hour: float | None, fail_on: str, exit_style: str,
) -> None:
    """Say what is wrong with a training, from any log of it.

    SOURCE is a file, a folder, a run, or wandb://ENTITY/PROJECT/RUN; the format is detected, as by
    `lldscope import`. Exit codes are those of `lldscope check`.

    \b
    lldscope diagnose train.log
    """
    from ..report import post_mortem
    from ..report.document import document
    from ..runs import open_run
    from .check import exit_code
    from .report import form_of, write_document

    run = _run(source, run_name)
    with open_run(run) as reader:
        facts = post_mortem(reader, None, cost_per_hour=cost_per_hour)
    answer = _answer(facts)
    if as_json:
        print_json(answer)
    else:
        _show(facts, answer)
    if file is not None:
        write_document(facts, document, form_of(file, None), file)
    sys.exit(exit_code(facts.state.verdict, fail_on, exit_style))


def _run(sources: tuple[str, ...], run_name: str | None) -> Path:
    """A run as it is; of anything else its import in the cache, made anew where it changed."""
    from ..importers.build import Import
    from ..importers.source import ImportRequest
    from ..storage.cache import cache_dir
    from .import_ import local_paths

    if len(sources) == 1 and Path(sources[0], "run.json").is_file():
        return Path(sources[0])
    paths = local_paths(sources, follow=False)
    key = "\0".join([*map(os.path.abspath, paths), run_name or ""])
    name = hashlib.blake2b(os.fsencode(key), digest_size=8).hexdigest()
    run = cache_dir() / "imports" / name / (paths[0].stem or "run")
    run.parent.mkdir(parents=True, exist_ok=True)
    Import(paths, run, ImportRequest(run=run_name), None).build(lambda n: None)
    return run


def _answer(facts: PostMortem) -> dict[str, Any]:
    """What is said, bounded in size."""
    state = facts.state
    serious = [alert for alert in state.alerts if alert.severity != "info"]
    return {
        "schema": 1,
        "verdict": state.verdict,
        "evidence": state.evidence,
        "cause": state.headline.cause,
        "action": state.headline.action,
        "setting": facts.changes[0].setting if facts.changes else None,
        "onset": facts.events[0].start if facts.events else None,
        "last_step": state.last_step,
        "grounds": [
            {"rule": a.rule, "severity": a.severity, "step": facts.alarm_step(a),
             "message": a.message}
            for a in serious[:LISTED]
        ],
        "summary": facts.summary[:LISTED],
        "not_in_this_log": facts.gaps[:LISTED],
        "record_next_time": list(facts.record),
        "cost": facts.cost and asdict(facts.cost),
    }


def _show(facts: PostMortem, answer: dict[str, Any]) -> None:
    from ..core.terminal import console, plain
    from .views import status_line

    console().print(status_line(facts.state))
    for sentence in (answer["cause"], answer["action"]):
        if sentence:
            click.echo(plain(sentence))
    if answer["setting"]:
        click.echo(f"setting to change first: {answer['setting']}")
    for title, lines in (
        ("grounds", [f"{g['rule']}, step {g['step']}: {g['message']}" for g in answer["grounds"]]),
        ("in short", answer["summary"]),
        ("not in this log", answer["not_in_this_log"]),
        ("to record it next time", answer["record_next_time"]),
    ):
        if lines:
            click.echo(f"\n{title}:")
        for line in lines:
            click.echo(f"  {plain(line)}")
