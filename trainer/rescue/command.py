"""`lldscope rescue RUN`: return to before the trouble, train short forks, and continue with the
best."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from lldscope import open_run
from lldscope.core.errors import UsageError
from lldscope.storage import json_files

from ..blame.command import fill
from .plan import ARMS, AS_IT_WAS, plan

ROUNDS = 4
FOLDER = "rescue"


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(min=ROUNDS, max=10_000),
              help="Of each fork.  [default: up to the alarm, from 20 to 60]")
@click.option("--plan", "only_plan", is_flag=True,
              help="Train nothing: print what to type, by the names of the run's own trainer.")
@click.option("--apply", "go_on", is_flag=True,
              help="Go on with the best as a new attempt of RUN; an existing rescue is reused.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def rescue(
    ctx: click.Context, run: Path, steps: int | None, only_plan: bool, go_on: bool, as_json: bool,
) -> None:
    """Go back to the last checkpoint before the trouble of RUN began, and try what helps.

    From there short forks are trained, each with one thing changed, and evaluated on the same
    held-out questions in four rounds; a fork that a sign test shows to be worse than the best is
    ended early. Forks and answer lie in RUN/rescue; RUN itself changes with --apply only.

    Exit code: 0 answered; 1 internal or I/O error, 2 what cannot be rescued.
    """
    with open_run(run) as source:
        onset = ctx.obj["onset"](source)
        if onset is None:
            raise UsageError(f"No warning has fired in {run}: there is nothing to go back from")
        if only_plan:
            _show_plan(source, onset, as_json)
            return
        answer = _answer(source, run, onset, steps, reuse=go_on)
    if as_json:
        click.echo(json_files.to_json(answer, indent=1))
    else:
        _show(answer)
    if go_on:
        _apply(ctx, run, answer)


def _show_plan(source: Any, onset: Any, as_json: bool) -> None:
    ways = plan(source, onset.sound)
    if not ways:
        raise UsageError(
            f"{source.place} was recorded by {source.info.get('trainer') or 'another trainer'}: "
            "there is a plan for lldscope train, TRL and verl"
        )
    if as_json:
        click.echo(json_files.to_json(
            {"schema": 1, "rule": onset.rule, "fired": onset.fired, "sound": onset.sound,
             "plan": [{"from": start, "command": text} for start, text in ways]}, indent=1))
        return
    trouble = _trouble(onset.rule, onset.fired, onset.sound)
    click.echo(fill(f"{trouble} Commands to try, {ways[0][0]}:"))
    for _, text in ways:
        click.echo("\n" + textwrap.indent(text, "  "))


def _trouble(rule: str, fired: int, sound: int) -> str:
    before = f"step {sound} was the last before the trouble began"
    if sound < 0:
        before = "the trouble may be as old as the run"
    return f"{rule} fired at step {fired}; {before}."


def _answer(
    source: Any, path: Path, onset: Any, steps: int | None, *, reuse: bool
) -> dict[str, Any]:
    from ..blame.recorded import last_checkpoint, recorded_settings
    from .forks import Fork, changes

    engine = (source.info.get("config") or {}).get("engine", "in-process")
    if engine != "in-process":
        raise UsageError(f"The forks are trained side by side, with engine=in-process, not "
                         f"{engine}; --plan says what to type")
    config = recorded_settings(source)
    if not config.eval_questions:
        raise UsageError("There are no held-out questions to compare forks by (eval_questions=N)")
    checkpoint = last_checkpoint(path, max(0, onset.sound + 1))
    start = checkpoint.state.step
    final = path / FOLDER / f"step-{start}.json"
    if reuse and final.is_file():
        return dict(json_files.parse(json_files.read_bytes(final, path)))
    length = steps or min(60, max(20, onset.fired - start))
    draft = path / FOLDER / f".step-{start}"
    shutil.rmtree(draft, ignore_errors=True)
    forks = [Fork(arm, change, config, checkpoint, draft / arm)
             for arm in ARMS if (change := changes(arm, config, checkpoint)) is not None]
    _train(forks, length)
    folder = final.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)
    answer = _to_dict(path, onset, start, length, forks)
    json_files.replace_file(final, json_files.to_json(answer))
    return answer


def _train(forks: Sequence[Any], steps: int) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from .forks import end_losers

    lengths = [steps // ROUNDS + (i < steps % ROUNDS) for i in range(ROUNDS)]
    with (
        ExitStack() as stack,
        Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar,
    ):
        tasks = {fork.arm: bar.add_task(fork.arm, total=steps) for fork in forks}
        running = [stack.enter_context(fork) for fork in forks]
        for length in lengths:
            for fork in running:
                fork.advance(length, lambda arm=fork.arm: bar.advance(tasks[arm]))
            running = end_losers(forks, ROUNDS)


def _to_dict(
    path: Path, onset: Any, start: int, steps: int, forks: Sequence[Any]
) -> dict[str, Any]:
    from .forks import winner

    best = winner(forks)
    others = [f.arm for f in forks if f.ended is None and f is not best]
    ended = [f"{f.arm} after step {f.ended - 1}" for f in forks if f.ended is not None]
    parts = [
        f"{_trouble(onset.rule, onset.fired, onset.sound)} Over {steps} steps from the checkpoint "
        f"before step {start}, {best.arm} answers most held-out questions: {best.em:.3f} in the "
        "mean of the rounds"
    ]
    if best.arm != AS_IT_WAS:
        parts.append(f"as it was it is {next(f.em for f in forks if f.arm == AS_IT_WAS):.3f}")
    if others:
        parts.append(f"not shown to be worse: {', '.join(others)}")
    if ended:
        parts.append(f"ended early: {', '.join(ended)}")
    return {
        "schema": 1, "run": str(path), "rule": onset.rule, "fired": onset.fired,
        "sound": onset.sound, "checkpoint": start, "steps": steps, "winner": best.arm,
        "settings": best.settings, "sentence": "; ".join(parts) + ".",
        "arms": [
            {"arm": f.arm, "settings": f.settings, "em": [s.em for s in f.scores],
             "delta": f.delta, "ended": f.ended}
            for f in forks
        ],
    }


def _show(answer: dict[str, Any]) -> None:
    width = max(len(a["arm"]) for a in answer["arms"])
    click.echo(f"{'held-out exact match':{max(width, 20)}}  rounds {' ' * 22}mean Δ")
    for a in answer["arms"]:
        ems = "  ".join(f"{em:.3f}" for em in a["em"])
        delta = "–" if a["delta"] is None else f"{a['delta']:+.2f}"
        ended = "" if a["ended"] is None else f"  ended after step {a['ended'] - 1}"
        click.echo(f"{a['arm']:{max(width, 20)}}  {ems:28} {delta:>7}{ended}")
    click.echo("\n" + fill(answer["sentence"]))


def _apply(ctx: click.Context, run: Path, answer: dict[str, Any]) -> None:
    from ..cli import train

    if not answer["settings"]:
        click.echo("No change does better than the run as it was: nothing is applied.", err=True)
        return
    words = tuple(f"{name}={value}" for name, value in answer["settings"].items())
    click.echo(f"going on with {answer['winner']}: {' '.join(words)}", err=True)
    ctx.invoke(
        train, config=words[0], overrides=words[1:], run=run, resume=True,
        step=answer["checkpoint"], settings=False,
    )
