"""A callback for transformers' Trainer that records what the trainer logs: means, nothing finer.

    trainer.add_callback(LldscopeCallback("runs/mine"))

Enough for alarms on reward, entropy and gradients. There is no Δ in a log; `lldscope.integrations
.trl` measures it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.errors import missing_package

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise missing_package(error, "lldscope.integrations.callback", "trl") from None

from ..importers.mapping import assign
from ..recording.recorder import FailOpen, Recorder

IGNORED = (
    "epoch", "step", "total_flos",
    "eval_runtime", "eval_samples_per_second", "eval_steps_per_second",
)
SUMMARY = ("train_runtime", "train_loss")
"""Metrics of the last entry, which summarizes the training and belongs to no step."""


class LldscopeCallback(TrainerCallback):
    """A step of the run is an optimizer step that was logged, counted from 0. `**about` goes to
    `lldscope.Recorder`: name, group, config, correct_rule, resume.

    A metric is recorded as the signal that an importer would map it to, with the difference in
    `estimator`; others keep their names. Raises RunExists or LldscopeError when the training
    begins; later errors are logged once and never end the training. Of several processes the main
    one records.
    """

    def __init__(self, path: str | Path, **about: Any) -> None:
        self._path, self._about = path, about
        self._recorder: Recorder | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and self._recorder is None:
            import transformers

            about = {"trainer": f"transformers {transformers.__version__}"} | self._about
            self._recorder = Recorder(self._path, **about)
            self._recorder.plan(state.max_steps)
            self._fail_open = FailOpen(self._recorder, "transformers")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self._recorder is None or not logs or set(SUMMARY) & set(logs):
            return
        with self._fail_open("a log entry"):
            self._record(self._recorder, max(0, state.global_step - 1), logs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recorder is not None:
            done = state.global_step >= state.max_steps
            self._recorder.close("finished" if done else "stopped")

    def _record(self, recorder: Recorder, step: int, logs: dict[str, Any]) -> None:
        numbers = {
            name: float(value)
            for name, value in logs.items()
            if isinstance(value, int | float) and name not in IGNORED
        }
        evals = {n: v for n, v in numbers.items() if n.startswith("eval_")}
        means = {n: v for n, v in numbers.items() if n not in evals}
        if evals:
            recorder.evals(
                step=step + 1, data_source="eval", metric=[n[5:] for n in evals],
                value=list(evals.values()),
            )
        if means:
            meanings = assign(means).values()
            recorder.scalars(
                step=step,
                name=[m.signal for m in meanings],
                value=[v * m.factor for v, m in zip(means.values(), meanings, strict=True)],
                estimator=[m.estimator for m in meanings],
            )
            recorder.step(step=step)
