"""Replay a recorded step from its checkpoint, then repeat its update with changes."""

from __future__ import annotations

import copy
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lldscope import NullRecorder, Recorder, open_run
from lldscope.core.errors import UsageError

from ..checkpoint import Checkpoint, Checkpoints, find_checkpoint
from ..train import Sample, Trainer
from .answer import LEAST_DRAWS, BlameAnswer, Result, interval
from .recorded import last_checkpoint, recorded_settings, refuse_changes
from .variants import correct_rows, delta_correct, measure, probe_set, update, variants

TABLES = ("steps", "updates", "responses", "actions", "retention")
_UNLIKE = re.compile("seconds_|memory_peak|time$|attempt$")  # need not be repeated


def blame(
    path: Path, step: int | None = None, draws: int = 8,
    advance: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> BlameAnswer:
    """Repeat the update of a step with changes; the run is only read.

    `draws`: new batches to sample with the same weights and the step's questions, or 0. `advance`
    receives the current task, its progress and its total. Raises UsageError if the run, the step or
    the checkpoint does not allow it.
    """
    if 0 < draws < LEAST_DRAWS:
        raise UsageError(f"An interval needs at least {LEAST_DRAWS} new batches, not {draws}.")
    run = open_run(path)
    config = recorded_settings(run)
    step = _step(run, path) if step is None else step
    if not run.rows(f"SELECT step FROM steps WHERE step = {step}").rows:
        raise UsageError(f"{path} has no row of step {step}.")
    checkpoint = last_checkpoint(path, step)
    start = checkpoint.state.step
    refuse_changes(run, start, step)
    with tempfile.TemporaryDirectory(prefix="lldscope-blame-") as folder:
        scratch = Path(folder)
        trainer = Trainer(config, NullRecorder(), checkpoint=checkpoint)
        try:
            for number in range(start, step):
                trainer.step(number)
                advance("replay", number + 1 - start, step - start)
            trainer.save(Checkpoints(scratch, keep=1), step)
            snapshot = find_checkpoint(scratch, step)
            sample = trainer.sample(step)
            replay = _replay(trainer, sample, run, scratch / "replay")
            results = _results(trainer, snapshot, sample, draws, advance)
        finally:
            trainer.close()
    return BlameAnswer(str(path), step, start, draws, replay, results)


def _step(run: Any, path: Path) -> int:
    """Among the recorded steps after a checkpoint, the one with the lowest Δ of correct
    responses."""
    first = min((c.state.step for c in Checkpoints(path, keep=1).all()), default=None)
    if first is None:
        raise UsageError(
            f"{path} holds no checkpoint to start from. checkpoint_every=N writes some."
        )
    rows = run.rows(f"SELECT step FROM signals WHERE step >= {first} AND delta_correct IS NOT NULL "
                    "ORDER BY delta_correct, step LIMIT 1").rows
    if not rows:
        raise UsageError(f"No step of {path} from step {first} on has a Δ. Name one with --step.")
    return int(rows[0][0])


def _replay(trainer: Trainer, sample: Sample, run: Any, path: Path) -> dict[str, bool]:
    """Repeat the step unchanged, record it elsewhere, and compare the rows of each table."""
    step = sample.draw.step
    with Recorder(
        path, name="replay", config=trainer.config.to_dict(), trainer=run.info["trainer"],
        correct_rule=run.info.get("correct_rule"),
    ) as recorder:
        trainer.recorder = recorder
        trainer.finish(copy.deepcopy(sample))
    trainer.recorder = NullRecorder()
    other = open_run(path)
    return {table: _rows(run, table, step) == _rows(other, table, step) for table in TABLES}


def _rows(run: Any, table: str, step: int) -> list[str]:
    """The rows of a step, sorted, without clock times."""
    answer = run.rows(f"SELECT * FROM {table} WHERE step = {step}")
    where = [i for i, name in enumerate(answer.names) if not _UNLIKE.search(name)]
    return sorted(repr([row[i] for i in where]) for row in answer.rows)


def _results(
    trainer: Trainer, snapshot: Checkpoint, recorded: Sample, draws: int,
    advance: Callable[[str, int, int], None],
) -> list[Result]:
    """All variants on the recorded batch and on the new ones, paired within each batch."""
    trainer.load_reference()  # the KL that is tried needs it
    changes = variants(trainer.config, snapshot.state.cures)
    results = [Result(variant.name, {}) for variant in changes]
    deltas: list[list[float]] = [[] for _ in changes]
    trainer.restore(snapshot)
    if recorded.batch.ref is None:
        passes = trainer.updater.passes(recorded.batch, recorded.minibatches)
        trainer.score_reference(recorded.batch, passes)
    before = probe_set(trainer)
    for again in range(draws + 1):
        trainer.restore(snapshot)
        sample = trainer.sample(recorded.draw.step, again) if again else recorded
        for number, variant in enumerate(changes):
            if again and not correct_rows(sample):
                break
            trainer.restore(snapshot)
            update(trainer, sample, variant)
            if again:
                deltas[number].append(delta_correct(trainer, sample))
            else:
                measures = measure(trainer, sample, before)
                results[number].measures = measures | {"em_greedy": trainer.evaluate()}
            advance("variants", again * len(changes) + number + 1, (draws + 1) * len(changes))
    for result, values in zip(results, deltas, strict=True):
        result.delta = interval(values)
        result.change = interval([v - w for v, w in zip(values, deltas[0], strict=True)])
    return results
