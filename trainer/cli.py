"""`lldscope train`: parse, call the trainer, show how it goes. Torch is imported only to train."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from lldscope.errors import LldscopeError, UsageError

if TYPE_CHECKING:
    from lldscope import Recorder

    from .config import TrainConfig
    from .train import StepReport, Summary

PLAIN_EVERY = 10
"""Steps between progress lines where there is no terminal to draw a bar on."""


class Monitor(Protocol):
    """What `ctx.obj["monitor"](run_dir)` gives: a look at the run that does not block."""

    def look(self) -> tuple[str | None, list[dict[str, Any]]]: ...
    def close(self) -> None: ...


@click.command(short_help="Train a search agent with GRPO, with or without LLDS.")
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--run", type=click.Path(path_type=Path), help="Run directory to make.")
@click.pass_context
def train(ctx: click.Context, config: str, overrides: tuple[str, ...], run: Path | None) -> None:
    """Train as CONFIG says: a YAML file or the name of a shipped configuration (tiny, demo).

    KEY=VALUE settings override the file, for example `lldscope train demo llds=action seed=1`.
    The run is recorded in runs/NAME-SEED unless --run names another directory.
    """
    _need_torch()
    from .config import load_config

    try:
        settings = load_config(config, overrides)
        run_dir = _new_run_dir(run, settings)
        summary = _train(settings, run_dir, _monitor(ctx, run_dir))
    except LldscopeError as error:
        click.echo(f"lldscope train: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("stopped; what was recorded so far is kept", err=True)
        sys.exit(130)
    em = "" if summary.em_greedy is None else f", greedy exact match {summary.em_greedy:.3f}"
    click.echo(f"reward of the last 10 steps {summary.final_reward:.3f}{em}", err=True)
    click.echo(run_dir)


def _train(settings: TrainConfig, run_dir: Path, monitor: Monitor | None) -> Summary:
    from lldscope import Recorder, __version__

    from .policy import model_directory
    from .reward import CORRECT_RULES
    from .train import train as run_training

    model_directory(settings.model)  # before anything is written
    recorder = Recorder(
        run_dir,
        name=settings.name,
        trainer=f"lldscope_trainer {__version__}",
        config=settings.to_dict(),
        correct_rule=CORRECT_RULES[settings.answers_from],
    )
    with recorder, _display(settings.steps, _Watch(monitor, recorder)) as show:
        save_to = run_dir / "policy" if settings.save_policy else None
        return run_training(settings, recorder, on_step=show, save_to=save_to)


def _need_torch() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers", "bm25s", "yaml") if not find_spec(name)]
    if missing:
        click.echo(
            f"Training needs {', '.join(missing)}, which is not installed: "
            'pip install "lldscope[train]"',
            err=True,
        )
        sys.exit(1)


def _new_run_dir(wanted: Path | None, settings: TrainConfig) -> Path:
    """A directory no run lives in: the wanted one, or runs/NAME-SEED with a number if taken."""
    if wanted is not None:
        if wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
            raise UsageError(f"--run {wanted}: something is there already; name a new directory")
        return wanted
    first = Path("runs") / f"{settings.name}-{settings.seed}"
    candidate, n = first, 1
    while candidate.exists():
        n += 1
        candidate = first.with_name(f"{first.name}-{n}")
    return candidate


def _monitor(ctx: click.Context, run_dir: Path) -> Monitor | None:
    """The phase service that whoever started this command may have handed over."""
    make = (ctx.obj or {}).get("monitor")
    return make(run_dir) if make else None


class _Watch:
    """Asks the monitor after each step; without one there is no phase and no alarm."""

    def __init__(self, monitor: Monitor | None, recorder: Recorder) -> None:
        self._monitor = monitor
        self._recorder = recorder

    def phase(self, say: Callable[[str], None]) -> str:
        """The phase now; alarms that are new are said and recorded on the way."""
        if self._monitor is None:
            return ""
        phase, alerts = self._monitor.look()
        for a in alerts:
            self._recorder.alert(**a)
            say(f"{a['severity']} {a['rule']} {a['state']} at step {a['step']}: {a['message']}")
        return f"  {phase}" if phase else ""

    def close(self, say: Callable[[str], None]) -> None:
        """One last look."""
        if self._monitor is not None:
            self._monitor.close()
            self.phase(say)


class _PlainDisplay:
    """A line every few steps, for logs."""

    def __init__(self, steps: int, watch: _Watch) -> None:
        self._steps = steps
        self._watch = watch
        self._started = time.monotonic()

    def __enter__(self) -> Callable[[StepReport], None]:
        return self._show

    def __exit__(self, *raised: object) -> None:
        self._watch.close(_say)

    def _show(self, report: StepReport) -> None:
        done = report.step + 1
        phase = self._watch.phase(_say)
        if done % PLAIN_EVERY == 0 or done == self._steps:
            left = (time.monotonic() - self._started) / done * (self._steps - done)
            click.echo(
                f"step {done}/{self._steps}  {_words(report)}{phase}  {left:.0f} s left", err=True
            )


class _BarDisplay:
    """A progress bar with reward, Δ, phase and time left; alarms are printed above it."""

    def __init__(self, steps: int, watch: _Watch) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        self._bar = Progress(
            MofNCompleteColumn(), BarColumn(bar_width=24), TextColumn("{task.description}"), Left(),
            console=Console(stderr=True),
        )  # fmt: skip
        self._watch = watch
        self._task = self._bar.add_task("starting", total=steps)

    def __enter__(self) -> Callable[[StepReport], None]:
        self._bar.start()
        return self._show

    def __exit__(self, *raised: object) -> None:
        self._watch.close(self._say)
        self._bar.stop()

    def _say(self, text: str) -> None:
        self._bar.console.print(text, markup=False)

    def _show(self, report: StepReport) -> None:
        text = f"{_words(report)}{self._watch.phase(self._say)}"
        self._bar.update(self._task, completed=report.step + 1, description=text)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _display(steps: int, watch: _Watch) -> AbstractContextManager[Callable[[StepReport], None]]:
    return (_BarDisplay if sys.stderr.isatty() else _PlainDisplay)(steps, watch)


def _words(report: StepReport) -> str:
    delta = "" if report.delta_correct is None else f"  Δ correct {report.delta_correct:+.2f}"
    return f"reward {report.reward:.2f}{delta}"
