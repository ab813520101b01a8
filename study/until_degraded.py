"""A training that ends early once its label is certain: python -m study.until_degraded --help

A run of the seed bank is judged only by what comes before its degradation (`label.py`), and the
label needs IN_A_ROW evaluations. After the last of these the rest of the run would cost time and
say nothing: it is stopped there, and its record says so.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
from lldscope_trainer import loop
from lldscope_trainer.config import TrainConfig, load_config
from lldscope_trainer.display import display
from lldscope_trainer.environment.reward import CORRECT_RULES
from lldscope_trainer.train import Trainer

import lldscope
from lldscope.core.errors import LldscopeError

from .arms import SNAPSHOTS
from .label import label


class DegradedError(Exception):
    """The run has its label."""


class Answers(lldscope.Recorder):
    """A recorder that remembers which questions each greedy evaluation answered."""

    def __init__(self, *about: Any, **settings: Any) -> None:
        super().__init__(*about, **settings)
        self.evaluations: dict[int, np.ndarray] = {}  # step → (questions,) of 0 and 1

    def eval_questions(self, **columns: Any) -> None:
        super().eval_questions(**columns)
        if columns["name"] == "greedy":
            self.evaluations[columns["step"]] = np.asarray(columns["em"])


class WatchedTrainer(Trainer):
    """Raises DegradedError after the evaluation that makes its run degraded."""

    def evaluate(self, *options: Any) -> float | None:
        result = super().evaluate(*options)
        answers = self.recorder.evaluations
        result_so_far = label(list(answers), np.stack(list(answers.values())), SNAPSHOTS)
        if result_so_far.verdict == "degraded":
            raise DegradedError
        return result


def train(config: TrainConfig, run_dir: Path) -> None:
    """Train into `run_dir` until the last step, or until the run counts as degraded."""
    trainer = WatchedTrainer(config, lldscope.NullRecorder())
    recorder = Answers(
        run_dir,
        name=config.name,
        trainer=f"lldscope_trainer {lldscope.__version__}",
        config=config.to_dict(),
        correct_rule=CORRECT_RULES[config.answers_from],
    )
    with recorder, display(config.steps) as show:
        try:
            loop.run(trainer, recorder, run_dir=run_dir, on_step=show.step)
        except DegradedError:
            recorder.close("stopped", f"degraded for certain by step {trainer.next_step}")


@click.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--run", type=click.Path(path_type=Path), required=True, help="Directory to make.")
def main(config: str, overrides: tuple[str, ...], run: Path) -> None:
    """Train as CONFIG says, without alarms, and stop once the run counts as degraded."""
    try:
        train(load_config(config, list(overrides)), run)
    except LldscopeError as error:
        click.echo(f"study.until_degraded: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
