"""A real training into which one real fault is put: python -m study.faults --help

The run goes on with the fault as it would in a user's hands: nothing of what it records is made up.
An event `injected_fault` says when it began and how bad it is; the fault also stands among the
settings in run.json.
"""

from __future__ import annotations

import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import click
from lldscope_trainer import loop
from lldscope_trainer.config import TrainConfig, load_config
from lldscope_trainer.display import display
from lldscope_trainer.environment.reward import CORRECT_RULES
from lldscope_trainer.train import StepReport, Trainer

import lldscope
from lldscope.core.errors import LldscopeError, UsageError
from lldscope.monitor.follow import Monitor

from .arms import BASE_FILE
from .broken import FAULTS


class FaultyTrainer(Trainer):
    """A trainer in which `fault` begins with step `at`."""

    def __init__(self, config: TrainConfig, recorder: Any, fault: str, at: int) -> None:
        if config.engine != "in-process":
            raise UsageError("faults are put into engine=in-process only")
        if not 0 < at < config.steps:
            raise UsageError(f"--at {at} is not allowed: it must be a step after the first")
        super().__init__(config, recorder)
        self._at = at
        self._name = fault
        self._fault = FAULTS[fault](self)

    def step(self, step: int) -> StepReport:
        if step == self._at:
            self.event("injected_fault", step=step, fault=self._name, **self._fault.begin())
        with self._fault.during_a_step() if step >= self._at else nullcontext():
            return super().step(step)


def train_with(fault: str, config: TrainConfig, run_dir: Path, at: int | None = None) -> None:
    """Train into `run_dir`, with the fault from step `at`, a third of the run by default."""
    at = config.steps // 3 if at is None else at
    trainer = FaultyTrainer(config, lldscope.NullRecorder(), fault, at)
    recorder = lldscope.Recorder(
        run_dir,
        name=config.name,
        trainer=f"lldscope_trainer {lldscope.__version__}",
        config=config.to_dict() | {"fault": fault, "fault_at": at},
        correct_rule=CORRECT_RULES[config.answers_from],
    )
    with recorder, display(config.steps) as show, closing(Monitor(run_dir)) as monitor:
        loop.run(
            trainer, recorder, run_dir=run_dir, monitor=monitor,
            on_step=show.step, on_evaluation=show.evaluation,
        )


_NAMES = "\n".join(f"{name:<16}{fault.words}" for name, fault in FAULTS.items())


@click.command(help=f"Train with FAULT from a third of the run on.\n\n\b\n{_NAMES}")
@click.argument("fault", type=click.Choice(list(FAULTS)), metavar="FAULT")
@click.argument("settings", nargs=-1, metavar="[CONFIG] [KEY=VALUE]...")
@click.option("--run", type=click.Path(path_type=Path), required=True, help="Directory to make.")
@click.option("--seed", type=int, help="Short for seed=N, and a name after fault and seed.")
@click.option("--at", type=int, help="Step at which it begins instead.")
def main(
    fault: str, settings: tuple[str, ...], run: Path, seed: int | None, at: int | None
) -> None:
    config, overrides = str(BASE_FILE), list(settings)
    if overrides and "=" not in overrides[0]:
        config = overrides.pop(0)
    if seed is not None:
        overrides = [f"seed={seed}", f"name=fault-{fault}-{seed}", *overrides]
    try:
        train_with(fault, load_config(config, overrides), run, at)
    except LldscopeError as error:
        click.echo(f"study.faults: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
