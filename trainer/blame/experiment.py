"""Replay a recorded step from its checkpoint, then run its update again in other ways."""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lldscope import NullRecorder, Recorder, open_run
from lldscope.core.errors import LldscopeError, UsageError
from lldscope.recording.blame_answer import AS_IT_WAS, BlameAnswer, Result

from ..checkpoint import Checkpoint, Checkpoints, find_checkpoint
from ..train import Sample, Trainer
from .recorded import changes_by_guard, last_checkpoint, recorded_settings
from .variants import (
    Variant,
    correct_rows,
    delta_correct,
    influences,
    measure,
    probe_set,
    update,
)
from .variants import variants as all_variants

GROUPS = 3
"""Groups that are left out, one at a time."""
TABLES = ("steps", "updates", "responses", "actions", "retention")
_UNLIKE = re.compile("seconds_|flops|memory_peak|time$|attempt$")  # need not be repeated


def blame(
    path: Path, step: int | None = None, draws: int = 8,
    advance: Callable[[str, int, int], None] = lambda what, done, total: None,
    *, repeat_all: bool = False,
) -> BlameAnswer:
    """Run the update of a step again in other ways; the run is only read.

    `draws`: batches that the same weights play anew with the step's questions; `repeat_all` makes
    every change on them, and leaves out no groups. `advance` gets what is done, how much of it, and
    of how much. Raises UsageError for a run, a step or a checkpoint with which this cannot be done.
    """
    run = open_run(path)
    config = recorded_settings(run)
    step = _step(run, path) if step is None else step
    _check_rows(run, step)
    checkpoint = last_checkpoint(path, step)
    start = checkpoint.state.step
    if any(e["kind"] == "rollback" and start <= e["step"] < step for e in run.events()):
        raise UsageError(f"The run was rolled back between its checkpoint before step {start} and "
                         f"step {step}, which a replay cannot follow")
    cures = changes_by_guard(run, config, start)
    size = 3 * sum(length for length, _ in checkpoint.files.values())
    if shutil.disk_usage(tempfile.gettempdir()).free < size:
        raise UsageError(f"{tempfile.gettempdir()} has no room for a second copy of the weights")
    with tempfile.TemporaryDirectory(prefix="lldscope-blame-") as folder:
        scratch = Path(folder)
        trainer = Trainer(config, NullRecorder(), checkpoint=checkpoint)
        try:
            for number in range(start, step):
                trainer.updater.cures = cures(number, trainer.updater.cures)
                trainer.step(number)
                advance("replay", number + 1 - start, step - start)
            trainer.updater.cures = cures(step, trainer.updater.cures)
            if failure := trainer.save(Checkpoints(scratch, keep=1), step):
                raise LldscopeError(f"The weights could not be copied to {scratch}: {failure}")
            snapshot = find_checkpoint(scratch, step)
            sample = trainer.sample(step)
            replay, differences = _replay(trainer, sample, run, scratch / "replay")
            experiment = _Experiment(trainer, snapshot, sample, draws, advance, repeat_all)
            results, influence = experiment.run()
        finally:
            trainer.close()
    return BlameAnswer(str(path), step, start, draws, replay, differences, results, influence)


def _step(run: Any, path: Path) -> int:
    """Of the recorded steps after a checkpoint, the one whose Δ of correct responses is lowest."""
    first = min((c.state.step for c in Checkpoints(path, keep=1).all()), default=None)
    if first is None:
        raise UsageError(
            f"{path} holds no checkpoint to start from (checkpoint_every=N makes them)"
        )
    rows = run.rows(f"SELECT step FROM signals WHERE step >= {first} AND delta_correct IS NOT NULL "
                    "ORDER BY delta_correct, step LIMIT 1").rows
    if not rows:
        raise UsageError(f"No step of {path} after its checkpoint of step {first} has a Δ: --step")
    return int(rows[0][0])


def _check_rows(run: Any, step: int) -> None:
    rows = run.rows(f"SELECT n_responses, (SELECT count(*) FROM responses WHERE step = {step}) "
                    f"FROM steps WHERE step = {step}").rows
    if not rows:
        raise UsageError(f"Step {step} is not among the recorded steps")
    if rows[0][0] != rows[0][1]:
        raise UsageError(f"The rows of step {step} are incomplete: {rows[0][1]} of {rows[0][0]} "
                         "responses")


def _replay(
    trainer: Trainer, sample: Sample, run: Any, path: Path
) -> tuple[dict[str, bool], dict[str, float]]:
    """Do the step as it was, record it elsewhere, and compare the rows."""
    step = sample.draw.step
    with Recorder(
        path, name="replay", config=trainer.config.to_dict(), trainer=run.info["trainer"],
        correct_rule=run.info.get("correct_rule"),
    ) as recorder:
        trainer.recorder = recorder
        trainer.finish(copy.deepcopy(sample))
    trainer.recorder = NullRecorder()
    other = open_run(path)
    same = {table: _rows(run, table, step) == _rows(other, table, step) for table in TABLES}
    if all(same.values()):
        return same, {}
    query = (
        "SELECT s.reward_sum, s.loss_policy, max(u.grad_norm) FROM steps s "
        f"LEFT JOIN updates u USING (step) WHERE s.step = {step} GROUP BY ALL"
    )
    names = ("reward_sum", "loss_policy", "grad_norm")
    values = zip(names, run.rows(query).rows[0], other.rows(query).rows[0], strict=True)
    return same, {n: abs(a - b) for n, a, b in values if a is not None and b is not None}


def _rows(run: Any, table: str, step: int) -> list[str]:
    """The rows of a step, sorted, without what is measured by the clock."""
    answer = run.rows(f"SELECT * FROM {table} WHERE step = {step}")
    where = [i for i, name in enumerate(answer.names) if not _UNLIKE.search(name)]
    return sorted(repr([row[i] for i in where]) for row in answer.rows)


class _Experiment:
    """All variants on the recorded batch and on re-drawn ones, paired within each."""

    def __init__(
        self, trainer: Trainer, snapshot: Checkpoint, sample: Sample, draws: int,
        advance: Callable[[str, int, int], None], repeat_all: bool,
    ) -> None:
        self._trainer, self._snapshot, self._sample = trainer, snapshot, sample
        self._draws, self._advance, self._all = draws, advance, repeat_all

    def run(self) -> tuple[list[Result], list[dict[str, Any]]]:
        trainer, sample = self._trainer, self._sample
        trainer.restore(self._snapshot)
        influence = _influence(trainer, sample)
        groups = [] if self._all else _most_harmful(influence)
        changes = all_variants(trainer.config, self._snapshot.state.cures, groups)
        repeats = [v for v in changes if v.repeat or self._all]
        self._total, self._done = len(changes) + len(repeats) * self._draws, 0
        if self._all:
            trainer.load_reference()
        deltas = self._on_draws(repeats)
        if sample.batch.ref is None:  # nothing but a KL needs it
            trainer.load_reference()
            trainer.score_reference(sample.batch, sample.minibatches)
        results = [
            Result(v.name, m) for v, m in zip(changes, self._on_the_record(changes), strict=True)
        ]
        for result in results:
            result.compare(deltas.get(result.name, []), deltas[AS_IT_WAS])
        return results, influence

    def _on_the_record(self, changes: Sequence[Variant]) -> Iterator[dict[str, float | None]]:
        """What each change does to the recorded batch."""
        trainer = self._trainer
        trainer.restore(self._snapshot)
        before = {"probe_set": probe_set(trainer)}
        for variant in changes:
            trainer.restore(self._snapshot)
            update(trainer, self._sample, variant)
            measures = measure(trainer, self._sample, before)
            em = trainer.evaluate(closed_book=False)[0]
            yield measures | {"em_greedy": em}
            self._count()

    def _on_draws(self, repeats: Sequence[Variant]) -> dict[str, list[float | None]]:
        """Δ of the correct responses of each draw, by variant."""
        trainer = self._trainer
        deltas: dict[str, list[float | None]] = {v.name: [] for v in repeats}
        for again in range(1, self._draws + 1):
            trainer.restore(self._snapshot)
            sample = trainer.sample(self._sample.draw.step, again)
            if not correct_rows(sample):
                self._count(len(repeats))
                continue
            for variant in repeats:
                trainer.restore(self._snapshot)
                update(trainer, sample, variant)
                deltas[variant.name].append(delta_correct(trainer, sample))
                self._count()
        return deltas

    def _count(self, n: int = 1) -> None:
        self._done += n
        self._advance("variants", self._done, self._total)


def _influence(trainer: Trainer, sample: Sample) -> list[dict[str, Any]]:
    values, size = influences(trainer, sample), trainer.config.group_size
    negative = (sample.batch.advantages < 0).tolist()
    rows = [
        {"group_id": group, "response_id": group * size + row % size, "influence": value,
         "correct": correct, "negative": is_negative}
        for row, (group, value, correct, is_negative) in enumerate(
            zip(sample.draw.groups, values, sample.correct, negative, strict=True))
    ]
    return sorted(rows, key=lambda r: r["influence"])


def _most_harmful(influence: Sequence[dict[str, Any]]) -> list[int]:
    """The groups whose influence on the correct responses is the largest, either way."""
    sums: dict[int, float] = {}
    for row in influence:
        sums[row["group_id"]] = sums.get(row["group_id"], 0.0) + row["influence"]
    order = sorted(sums, key=lambda group: (-abs(sums[group]), group))
    return [group for group in order if sums[group]][:GROUPS]
