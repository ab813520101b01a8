"""`lldscope import SOURCE… --to RUN`: logs of other trainers as a run."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import LldscopeError, UsageError
from ..core.terminal import plain
from ..storage.cache import cache_dir
from ..storage.json_files import to_json
from .shared import progress

if TYPE_CHECKING:
    from ..importers.build import Import, ImportSummary
    from ..importers.source import ImportRequest


def _formats(context: click.Context, param: click.Parameter, value: bool) -> None:
    """The formats, one a line."""
    if not value:
        return
    from ..importers.detect import sources

    for source in sources():
        click.echo(f"{source.name:<18} {source.description}")
    context.exit()


maps_option = click.option(
    "--map", "maps", multiple=True, metavar="OURS=THEIRS",
    help="Name of a signal, of the step, or of a part of a rollout in the file: reward=mean_r.",
)
run_option = click.option(
    "--run", "run_name", metavar="NAME", help="The run to read from a store that holds several."
)


@click.command("import")
@click.argument("source", nargs=-1, required=True)
@click.option(
    "--to", "run", required=True, type=click.Path(path_type=Path), help="Directory of the new run."
)
@click.option(
    "--format", "format_name", metavar="NAME", help="Skip detection and read this format."
)
@click.option(
    "--formats", is_flag=True, is_eager=True, expose_value=False, callback=_formats,
    help="List the formats.",
)
@maps_option
@run_option
@click.option(
    "--correct-from", type=float, default=1.0, metavar="REWARD",
    help="Rollouts with at least this reward count as correct.",
)
@click.option(
    "--exact-match", is_flag=True,
    help="Judge rollouts by comparing <answer> with the golden answers in the file.",
)
@click.option("--follow", is_flag=True, help="Follow growing sources until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def import_(
    source: tuple[str, ...], run: Path, format_name: str | None, maps: tuple[str, ...],
    run_name: str | None, correct_from: float, exact_match: bool, follow: bool, as_json: bool,
) -> None:
    """Convert the logs of one training run, of any trainer, into a run that every command reads.

    The format is detected; several files and folders of one run can be named together. Importing
    again gives the same run; a recorded run is never overwritten. What cannot be read is counted,
    and unknown metrics keep their own names.

    \b
    lldscope import train.log --to runs/theirs
    lldscope import train.log rollouts/ --to runs/theirs
    """
    from ..importers.source import ImportRequest

    request = ImportRequest(columns_of(maps), correct_from, exact_match, run_name)
    paths, request = local_paths(source, request, follow)
    task, summary = imported(paths, run, request, format_name, follow)
    _show(summary, as_json)
    if follow:
        _follow(task, as_json)


def local_paths(
    sources: tuple[str, ...], request: ImportRequest, follow: bool
) -> tuple[tuple[Path, ...], ImportRequest]:
    """The sources as paths, and the request with the run that an address names. A source at an
    address is fetched."""
    from dataclasses import replace

    from ..importers.addresses import is_address, located

    if follow and any(map(is_address, sources)):
        raise UsageError(
            "A URL cannot be followed: import it again, or follow the file itself, which for "
            "a run at W&B is run-<id>.wandb."
        )
    paths, folder = [], cache_dir() / "fetched"
    for source in sources:
        path, run = located(source, folder, request.run) if is_address(source) else (
            Path(source), request.run
        )
        paths.append(path)
        request = replace(request, run=run)
    return tuple(paths), request


def imported(
    source: tuple[Path, ...], run: Path, request: ImportRequest, format_id: str | None, follow: bool
) -> tuple[Import, ImportSummary]:
    """Import the sources; with --follow, wait for a trainer that has not logged anything yet."""
    from ..importers.build import POLL_SECONDS, Import, NothingImported

    waited = False
    while True:
        try:
            task = Import(source, run, request, format_id)
            with progress(length=task.size) as bar:
                return task, task.build(bar.update, live=follow)
        except NothingImported as nothing:
            if not follow:
                raise
            if not waited:
                click.echo(f"lldscope: {nothing}\nlldscope: waiting; Ctrl-C ends it.", err=True)
            waited = True
            time.sleep(POLL_SECONDS)


def columns_of(maps: tuple[str, ...]) -> dict[str, str]:
    from ..importers.mapping import SCALAR_SIGNALS
    from ..importers.rollouts import NAMES

    columns = {}
    for mapping in maps:
        ours, _, theirs = mapping.partition("=")
        if not theirs or ours not in {*SCALAR_SIGNALS, "step", *NAMES}:
            raise UsageError(
                f"--map {mapping}: write OURS=THEIRS, where OURS is step, a signal with a mean "
                f"(`lldscope schema signals`) or a part of a rollout ({', '.join(NAMES)}), for "
                "example reward=train/reward_mean."
            )
        columns[ours] = theirs
    return columns


def _follow(task: Import, as_json: bool) -> None:
    click.echo("lldscope: following; Ctrl-C ends it.", err=True)

    def report(summary: ImportSummary) -> None:
        if as_json:
            _show(summary, as_json)
        else:
            click.echo(f"{summary.steps} {summary.findings.counted}", err=True)

    try:
        task.follow(threading.Event().wait, report)
    except KeyboardInterrupt:
        task.close("the import was interrupted; the run itself may continue")
    except LldscopeError as error:
        task.close(f"the import failed: {error}")
        raise


def _show(summary: ImportSummary, as_json: bool) -> None:
    from ..importers.reading import listing

    findings = summary.findings
    if as_json:
        counts = ("formats", "steps", "attempts", "rows", "unchanged")
        answer: dict[str, Any] = {
            "schema": 1,
            "run": str(summary.run),
            **{name: getattr(summary, name) for name in counts},
            "skipped": dict(findings.skipped),
            "unmapped": sorted(findings.names),
            "notes": [*findings.notes, *findings.differences],
        }
        click.echo(to_json(answer))
        return
    if summary.unchanged:
        click.echo(f"{plain(summary.run)}: unchanged since the last import.")
    else:
        formats = ", ".join(f"{n} × {name}" for name, n in summary.formats.items())
        attempts = f", {summary.attempts} attempts" if summary.attempts > 1 else ""
        steps = f"{summary.steps} {findings.counted}"
        click.echo(f"{plain(summary.run)}: {steps}{attempts} from {formats}.")
        rows = ", ".join(f"{n:,} {table}" for table, n in summary.rows.items())
        click.echo(f"rows: {rows}")
    for note in (*findings.notes, *findings.differences):
        click.echo(f"lldscope: {plain(note)}", err=True)
    for reason, n in findings.skipped.items():
        click.echo(f"lldscope: passed over {n} × {plain(reason)}.", err=True)
    if findings.names:
        names = listing([plain(name) for name in sorted(findings.names)], 12)
        click.echo(f"lldscope: kept under their own names: {names}.", err=True)
