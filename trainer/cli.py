"""`lldscope train`: parse, call the trainer, show its progress. Torch is imported only to train."""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lldscope.core.errors import LldscopeError, UsageError

if TYPE_CHECKING:
    from .checkpoint import Checkpoint
    from .config import TrainConfig
    from .loop import Ending
    from .optim.processes import Processes

STOPPED_BY_GUARD = 11
"""The exit code of `lldscope check` for a critical run."""


@click.command(short_help="Train a search agent with GRPO or GSPO, with or without LLDS.")
@click.argument("config", required=False)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--run", type=click.Path(path_type=Path), help="Directory of the new run.")
@click.option(
    "--resume", is_flag=True, help="Resume the run named by --run from its last checkpoint."
)
@click.option(
    "--checkpoint", "step", type=click.IntRange(min=0), metavar="STEP",
    help="With --resume: continue from the newest checkpoint at or before this step. Later ones "
    "are deleted.",
)
@click.option("--settings", is_flag=True, help="Print every setting and exit.")
@click.pass_context
def train(
    ctx: click.Context,
    config: str | None,
    overrides: tuple[str, ...],
    run: Path | None,
    resume: bool,
    step: int | None,
    settings: bool,
) -> None:
    """Train as CONFIG says: a YAML file or the name of a built-in configuration (tiny, demo,
    search-smollm2, search-r1-3b, search-r1-3b-80gb, search-r1-3b-141gb).

    KEY=VALUE settings override the file, for example `lldscope train demo llds=action seed=1`.
    The run is recorded in runs/NAME-SEED unless --run names another directory.

    With --resume, a run continues from its last checkpoint with its own settings: `lldscope train
    --resume --run runs/mine steps=300`. A damaged checkpoint is skipped for the one before it.

    On several GPUs: `torchrun --nproc_per_node 4 -m -- lldscope train CONFIG --run runs/mine`.
    """
    if settings:
        from .config import TrainConfig
        from .settings import describe

        click.echo(describe(TrainConfig))
        return
    from .preflight import check_run_directory

    checkpoint = None
    if resume:
        run_config, checkpoint = _resumed(run, config, overrides, step)
    elif step is not None:
        raise UsageError("--checkpoint needs --resume: it says what to resume from")
    else:
        from .config import load_config
        from .settings import shipped

        if config is None:
            raise UsageError(
                "Say what to train: a YAML file, or a shipped configuration: "
                f"{', '.join(shipped())}"
            )
        run_config = load_config(config, overrides)
        if run is not None and not any(o.startswith("name=") for o in overrides):
            run_config = run_config.replace(name=run.resolve().name)
        check_run_directory(run)
    _refuse_early(ctx, run_config, checkpoint)
    try:
        summary, run_dir = _train(ctx, run_config, run, checkpoint)
    except KeyboardInterrupt:
        click.echo("stopped; everything recorded so far is on disk", err=True)
        sys.exit(130)
    if summary is not None:
        click.echo(_closing_words(summary), err=True)
        click.echo(run_dir)
        sys.exit(STOPPED_BY_GUARD if summary.stopped else 0)


def _train(
    ctx: click.Context, settings: TrainConfig, directory: Path | None, checkpoint: Checkpoint | None
) -> tuple[Ending | None, Path]:
    """(how the run ended, its directory); the first is None on all ranks but 0."""
    from lldscope import NullRecorder

    from .checkpoint import Checkpoints
    from .display import alarm_line, display
    from .loop import run
    from .optim.processes import start
    from .train import Trainer

    with start(settings.device) as processes:
        first = processes.rank == 0
        run_dir = directory if checkpoint else _new_run_dir(directory, settings, processes)
        assert run_dir is not None
        changed = _changed(run_dir, settings) if checkpoint else {}
        trainer = Trainer(settings, NullRecorder(), processes=processes, checkpoint=checkpoint)
        recorder = _recorder(settings, run_dir, processes, checkpoint)
        make = (ctx.obj or {}).get("monitor") if first else None
        with (
            recorder,
            display(settings.steps, trainer.next_step, visible=first) as show,
            closing(make(run_dir)) if make else nullcontext() as monitor,
        ):
            if checkpoint and first:
                Checkpoints(run_dir, keep=1).forget_after(trainer.next_step)
                recorder.event("resume", step=trainer.next_step, settings=settings.to_dict(),
                               changed=changed)
            summary = run(
                trainer, recorder, run_dir=run_dir, monitor=monitor,
                on_step=show.step, on_evaluation=show.evaluation,
            )
            if monitor is not None:
                monitor.close()
                for alert in monitor.poll()[1]:
                    recorder.alert(**alert)
                    show.say(alarm_line(alert))
            if summary.stopped:
                recorder.close("stopped", summary.stopped)
    return (summary if first else None), run_dir


def _changed(run: Path, settings: TrainConfig) -> dict[str, Any]:
    """Settings that differ from the previous attempt."""
    from lldscope.storage.layout import read_run

    before = read_run(run)["config"]
    return {name: value for name, value in settings.to_dict().items() if before.get(name) != value}


def _refuse_early(ctx: click.Context, settings: TrainConfig, checkpoint: Checkpoint | None) -> None:
    """Refuse bad settings before torch is loaded and before a run exists."""
    from .guard import watched
    from .preflight import check, warnings

    check(settings)
    if settings.guard != "off" and "alarms" in (ctx.obj or {}):
        alarms = ctx.obj["alarms"]()
        for rule in watched(settings.guard_on):
            if rule not in alarms:
                raise UsageError(
                    f"guard_on={settings.guard_on} is not allowed: there is no alarm {rule!r}; "
                    f"there are {', '.join(alarms)}"
                )
    if os.environ.get("RANK", "0") == "0":  # of the processes that torchrun started
        for line in warnings(settings):
            click.echo(f"warning: {line}", err=True)
        if checkpoint:
            step = checkpoint.state.step
            click.echo(f"going on from the checkpoint before step {step}", err=True)


def _recorder(
    settings: TrainConfig, run_dir: Path, processes: Processes, checkpoint: Checkpoint | None
) -> Any:
    """This rank's recorder. Rank 0 creates the run and counts its attempts."""
    from lldscope import Recorder, __version__

    from .environment.reward import CORRECT_RULES

    def make(attempt: int | None) -> Recorder:
        return Recorder(
            run_dir,
            name=settings.name,
            trainer=f"lldscope_trainer {__version__}",
            config=settings.to_dict(),
            correct_rule=CORRECT_RULES[settings.answers_from],
            rank=processes.rank,
            world_size=processes.size,
            resume=checkpoint is not None,
            attempt=attempt,
        )

    recorder = make(None) if processes.rank == 0 else None
    attempt = int(processes.share(str(recorder.attempt) if recorder else ""))
    return recorder or make(attempt)


def _resumed(
    run: Path | None, config: str | None, overrides: tuple[str, ...], step: int | None
) -> tuple[TrainConfig, Checkpoint]:
    """The settings of a run with overrides, and its newest checkpoint (at or before `step`, if
    given)."""
    from lldscope.storage.layout import read_run

    from .checkpoint import find_checkpoint, with_settings
    from .config import recorded_config

    if run is None:
        raise UsageError("--resume needs --run RUN: the run to resume")
    # What stands where the configuration would is the first override.
    words = (config, *overrides) if config is not None else ()
    values = read_run(run).get("config")
    if not isinstance(values, dict):
        raise LldscopeError(f"{run}/run.json holds no settings to resume with")
    checkpoint = find_checkpoint(run, step)
    settings = recorded_config(values, words)
    return settings, with_settings(checkpoint, settings, {w.partition("=")[0] for w in words})


def _closing_words(summary: Ending) -> str:
    parts = [summary.stopped] if summary.stopped else []
    if rewards := summary.rewards:
        steps = "step" if len(rewards) == 1 else f"{len(rewards)} steps"
        parts.append(f"reward of the last {steps} {sum(rewards) / len(rewards):.3f}")
    if summary.em is not None:
        parts.append(f"exact match {summary.em:.3f}")
    return ", ".join(parts) or "nothing was left to do"


def _new_run_dir(directory: Path | None, settings: TrainConfig, processes: Processes) -> Path:
    """The directory of a new run: the requested one, or runs/NAME-SEED with a number if that
    exists. Rank 0 chooses."""
    path = first = directory or Path("runs") / f"{settings.name}-{settings.seed}"
    if directory is None:
        numbers = itertools.count(2)
        while path.exists():
            path = first.with_name(f"{first.name}-{next(numbers)}")
    return Path(processes.share(str(path)))
