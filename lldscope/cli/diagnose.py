"""`lldscope diagnose SOURCE…`: what is wrong with a run, from a log of any format."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..core.errors import LldscopeError, SeveralRuns
from ..core.palette import SEVERITIES
from ..core.safe_text import counted_in
from ..core.terminal import console, paragraph, plain
from ..core.version import __version__
from ..importers.addresses import is_address, is_fetched
from ..importers.reading import choose_run
from ..importers.source import ImportRequest
from ..runs import find_runs, open_run
from ..storage.cache import cache_dir
from ..storage.url import place_of
from .check import exit_code
from .import_ import columns_of, imported, local_paths, maps_option, run_option
from .report import form_of, write_document
from .shared import fail_on_option, print_json, print_table, verdict_text


@click.command()
@click.argument("source", nargs=-1, required=True)
@run_option
@maps_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, bounded in size.")
@click.option(
    "-o", "--output", "file", type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the whole post-mortem: .html, .md or .json.",
)
@fail_on_option
def diagnose(
    source: tuple[str, ...], run_name: str | None, maps: tuple[str, ...], as_json: bool,
    file: Path | None, fail_on: str,
) -> None:
    """Say what is wrong with a training run, from any of its logs, and what to change.

    SOURCE is a file, a folder, a run, the address of one (https, s3, hf://datasets/OWNER/NAME), or
    of a run in a tracker: wandb://ENTITY/PROJECT/RUN, mlflow://[HOST:PORT/]EXPERIMENT/RUN,
    trackio://PROJECT/RUN. The format is detected, as by `lldscope import`. Of several runs in one
    SOURCE each gets a line of a table. Exit codes are those of `lldscope check`, of several runs
    the worst.

    \b
    lldscope diagnose train.log
    lldscope diagnose https://host/trainer_state.json -o report.html
    """
    from ..report import post_mortem  # pandas, which --help need not load
    from ..report.brief import brief
    from ..report.document import document

    form = None if file is None else form_of(file, None)
    request = ImportRequest(columns_of(maps), run=run_name)
    try:
        place = run_of(source, request)
    except SeveralRuns as several:
        if file is not None:
            raise
        sys.exit(_judge_all(source, request, several.runs, as_json, fail_on))
    with open_run(place) as run:
        facts = post_mortem(run)
        if not any(map(is_address, source)):  # name the log, not its import in the cache
            facts = replace(facts, run=replace(facts.run, place=" ".join(source)))
        answer = brief(run, facts)
    if as_json:
        print_json(answer)
    else:
        _show(answer)
    if file is not None and form is not None:
        write_document(facts.to_dict, lambda: document(facts), form, file)
    sys.exit(exit_code(facts.state.verdict, fail_on))


def _judge_all(
    source: tuple[str, ...], request: ImportRequest, names: list[str], as_json: bool, fail_on: str
) -> int:
    """A line for each run; returns the worst exit code."""
    from ..monitor.health import check

    rows: list[dict[str, Any]] = []
    codes = [0]
    for name in names:
        try:
            with open_run(run_of(source, replace(request, run=name))) as run:
                state = check(run)
        except LldscopeError as error:
            rows.append({"run": name, "verdict": "unreadable", "verdict_word": "unreadable",
                         "last_step": None, "cause": str(error)})
            codes.append(error.exit_code)
            continue
        rows.append({"run": name, "verdict": state.verdict, "verdict_word": state.sign.word,
                     "last_step": state.last_step, "cause": state.headline.cause})
        codes.append(exit_code(state.verdict, fail_on))
    if as_json:
        print_json(rows)
        return max(codes)
    cells = ((row["run"], verdict_text(row["verdict"], row["verdict_word"]), row["last_step"],
              row["cause"]) for row in rows)
    print_table(("run", "verdict", "step", "what is wrong"), cells, right=(2,), wide=False)
    return max(codes)


def run_of(sources: tuple[str, ...], request: ImportRequest) -> Any:
    """The run itself, or for any other log its import in the cache, made anew if the log has
    changed. Raises SeveralRuns if the source holds several runs and none is named."""
    if len(sources) == 1 and not is_fetched(sources[0]):
        place = place_of(sources[0])
        if place.is_dir():
            runs = {run.relative_to(place).as_posix(): run for run in find_runs(place)}
            query = request.run if len(runs) > 1 else None
            if name := choose_run(query, {one: one for one in runs}, str(place)):
                return runs[name]
    paths, request = local_paths(sources, request, follow=False)
    key = "\0".join([__version__, *map(os.path.abspath, paths), repr(request)])
    name = hashlib.blake2b(os.fsencode(key), digest_size=8).hexdigest()
    run = cache_dir() / "imports" / name / (paths[0].name or "run")
    run.parent.mkdir(parents=True, exist_ok=True)
    imported(paths, run, request, None, follow=False)
    return run


def _show(answer: dict[str, Any]) -> None:
    from rich.text import Text

    from ..report.facts import Cost
    from ..report.ordinary import in_words
    from ..report.sentences import spending

    out, verdict = console(), verdict_text(answer["verdict"], answer["verdict_word"])
    first, last, planned = (answer[n] for n in ("first_step", "last_step", "planned_steps"))
    counted, step = answer["counted"], answer["counted"][:-1]
    steps = f"no {step}" if last is None else f"{counted} {first:,}–{last:,}"
    of = f" of {planned:,}" if planned and last is not None else ""
    cost = answer["cost"]
    lines: list[Text | str] = [
        Text.assemble((plain(answer["run"]), "bold"), "  ", (verdict.plain.upper(), verdict.style),
                      f"  {steps}{of}  {answer['evidence_words']}"),
        f"{answer['cause']}: {answer['action']}" if answer["action"] else answer["cause"],
    ]
    if change := answer["change"]:
        value = "" if change["value"] is None else f" ({change['value']} in this run)"
        lines.append(f"first change: {change['setting']}{value}, {change['change']}")
    if answer["onset"] is not None:
        lines.append(f"first sign: {step} {answer['onset']}")
    for line in lines:
        out.print(paragraph(out, line))
    sections = {
        "why": [
            f"{SEVERITIES[g['severity']].shape} {g['rule']}"
            f"{'' if g['step'] is None else ', ' + step + ' ' + str(g['step'])}"
            f"{'' if g['again'] is None else ' and again ' + str(g['again'])}: {g['message']}"
            for g in answer["grounds"]
        ],
        "in short": [] if answer["grounds"] else answer["summary"],
        "components of the reward": [
            f"{c['component']}: 0 in every step" if c["unpaid"] else
            f"{c['component']}: {c['first']:.3g} at first, {c['best']:.3g} at best, "
            f"{c['last']:.3g} at the end"
            for c in answer["reward_components"]
        ],
        "is this normal?": [*map(in_words, answer["usual"]), *answer["expected"]],
        "what it cost": [counted_in(counted, spending(Cost(**cost)))] if cost else [],
        "what the trainer means by it": answer["numbers"],
        "about this log": answer["notes"],
        "what this log cannot show": answer["not_in_this_log"],
    }
    for title, sentences in sections.items():
        if sentences:
            out.print(f"\n{title}", style="dim")
        for sentence in sentences:
            out.print(paragraph(out, sentence, 2))
    if answer["record_next_time"]:
        out.print(f"\nto record it next time ({answer['trainer']})", style="dim")
        for line in answer["record_next_time"]:
            out.print(f"  {line}")
