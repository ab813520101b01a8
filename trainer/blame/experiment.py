"""Replay a recorded step from its checkpoint, then run its update again in other ways."""

from __future__ import annotations

import logging
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

from lldscope import NullRecorder, Recorder, __version__, open_run
from lldscope.core.errors import LldscopeError, UsageError

from ..checkpoint import Checkpoint, Checkpoints, find_checkpoint
from ..config import TrainConfig
from ..preflight import check
from ..train import Sample, Trainer
from .variants import (
    AS_IT_WAS,
    HALF_RATE,
    POSITIVE,
    Variant,
    correct_rows,
    delta_correct,
    influences,
    measure,
    probe_set,
    update,
)
from .variants import variants as all_variants

log = logging.getLogger("lldscope")
GROUPS = 3
"""Groups that are left out, one at a time."""
TABLES = ("steps", "updates", "responses", "actions", "retention")
_UNLIKE = re.compile("seconds_|flops|memory_peak|time$|attempt$")  # need not be repeated


@dataclass
class Result:
    """A variant: what was measured on the recorded batch, and over the draws (mean, low, high) of
    Δ of the correct responses and of its difference from the update as it was, in nats."""

    name: str
    measures: dict[str, float | None]
    delta: tuple[float, float, float] | None = None
    change: tuple[float, float, float] | None = None


@dataclass
class Blame:
    """The answer. `replay`: whether each table's rows of the step came out as recorded, to the bit;
    `differences`: largest absolute differences where they did not. `influence`: of each response,
    the most harmful first."""

    run: str
    step: int
    checkpoint: int
    draws: int
    replay: dict[str, bool]
    differences: dict[str, float]
    variants: list[Result]
    influence: list[dict[str, Any]]
    warnings: list[str] = field(default_factory=list)
    schema: int = 1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"sentence": self.sentence, "same": all(self.replay.values())}

    @property
    def harmful(self) -> int:
        """The fewest responses that make half of the harmful first-order influence."""
        values = [-r["influence"] for r in self.influence if r["influence"] < 0]
        total, n = 0.0, 0
        while n < len(values) and total < sum(values) / 2:
            total, n = total + values[n], n + 1
        return n

    @property
    def sentence(self) -> str:
        """What lowers the likelihood of correct responses, over the draws."""
        results = {r.name: r for r in self.variants}
        was = results[AS_IT_WAS].delta
        if was is None:
            return (
                "Fewer than six draws have a correct response in a mixed group: "
                "there is no Δ to explain."
            )
        change_once = results[AS_IT_WAS].measures["delta_correct"]
        once = "has no Δ"
        if change_once is not None:
            once = f"changed it by {change_once:+.2f} nats a response"
        start = (
            f"{{}} the log-likelihood of correct responses: {was[0]:+.2f} nats a response over "
            f"{self.draws} new batches from the same weights, 95 % interval {was[1]:+.2f} to "
            f"{was[2]:+.2f} (the recorded batch {once})"
        )
        if was[0] >= 0:
            return start.format("This update does not lower") + "."
        luck = "; chance may explain it" if was[2] > 0 else ""
        parts = [start.format("This update lowers") + luck]
        if (change := results[POSITIVE].change) is not None:
            noise = "" if change[1] * change[2] > 0 else ", within noise"
            parts.append(
                f"negative advantages account for {-change[0]:+.2f} of {was[0]:+.2f}{noise}"
            )
        if self.harmful:
            what = "response makes" if self.harmful == 1 else "responses make"
            parts.append(f"{self.harmful} {what} half of the harmful first-order influence")
        others = (
            ("LLDS, action gate", "with LLDS it is"), ("without LLDS", "without LLDS it is"),
            (HALF_RATE, "at half the learning rate it is"),
        )
        for name, words in others:
            if name in results and (delta := results[name].delta):
                parts.append(f"{words} {delta[0]:+.2f}")
        return "; ".join(parts) + "."


def blame(
    path: Path, step: int | None = None, draws: int = 8,
    advance: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Blame:
    """Run the update of a step again in other ways; the run is only read.

    `draws`: batches that the same weights play anew with the step's questions. `advance` gets what
    is done, how much of it, and of how much. Raises UsageError for a run, a step or a checkpoint
    with which this cannot be done.
    """
    run = open_run(path)
    config = _config(run.info)
    step = _step(run, path) if step is None else step
    _check_rows(run, step)
    checkpoint, cures = _checkpoint(run, path, config, step)
    size = 3 * sum(length for length, _ in checkpoint.files.values())
    if shutil.disk_usage(tempfile.gettempdir()).free < size:
        raise UsageError(f"{tempfile.gettempdir()} has no room for a second copy of the weights")
    warnings = _warnings(run.info, checkpoint)
    with tempfile.TemporaryDirectory(prefix="lldscope-blame-") as folder:
        scratch = Path(folder)
        trainer = Trainer(config, NullRecorder(), checkpoint=checkpoint)
        try:
            for number in range(checkpoint.state.step, step):
                trainer.updater.cures = cures(number, trainer.updater.cures)
                trainer.step(number)
                advance("replay", number + 1 - checkpoint.state.step, step - checkpoint.state.step)
            trainer.updater.cures = cures(step, trainer.updater.cures)
            if failure := trainer.save(Checkpoints(scratch, keep=1), step):
                raise LldscopeError(f"The weights could not be copied to {scratch}: {failure}")
            snapshot = find_checkpoint(scratch, step)
            replay, differences = _replay(trainer, run, scratch / "replay", step)
            experiment = _Experiment(trainer, snapshot, step, draws, advance)
            results, influence = experiment.run()
        finally:
            trainer.close()
    return Blame(
        str(path), step, checkpoint.state.step, draws, replay, differences, results, influence,
        warnings,
    )


def _config(info: dict[str, Any]) -> TrainConfig:
    name = info.get("name")
    if not str(info.get("trainer") or "").startswith("lldscope_trainer"):
        raise UsageError(
            f"{name} was not recorded by `lldscope train` but by {info.get('trainer') or 'another'}"
            ": its steps cannot be run again here"
        )
    config = TrainConfig(**info["config"])
    if int(info.get("world_size") or 1) > 1 or config.optimizer != "torch":
        raise UsageError(f"{name} was trained by several processes, or with DeepSpeed: blame runs "
                         "in one process, with optimizer=torch")
    check(config)
    return config


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


def _checkpoint(
    run: Any, path: Path, config: TrainConfig, step: int
) -> tuple[Checkpoint, Callable[[int, Any], Any]]:
    """The newest intact checkpoint that step can be reached from, and what a guard had changed:
    a function of a step and the cures before it."""
    steps = [c.state.step for c in Checkpoints(path, keep=1).all() if c.state.step <= step]
    for start in sorted(steps, reverse=True):
        try:
            checkpoint = find_checkpoint(path, start)
            break
        except UsageError as error:
            log.warning("lldscope: %s", error)
    else:
        raise UsageError(
            f"{path} holds no intact checkpoint at or before step {step} "
            "(checkpoint_every=N makes them, checkpoints_kept=N keeps more)"
        )
    events = [e for e in run.events() if isinstance(e.get("step"), int)]
    if any(e["kind"] == "rollback" and start <= e["step"] < step for e in events):
        raise UsageError(f"The run was rolled back between its checkpoint before step {start} and "
                         f"step {step}, which a replay cannot follow")

    def cures(number: int, before: Any) -> Any:
        for event in events:
            kind, at = event["kind"], event["step"]
            if kind == "lr_change" and at == number > start:
                before = replace(before, lr_share=event["lr"] / config.lr)
            elif kind == "llds" and at + 1 == number > start:
                before = replace(before, llds=event["gate"], llds_coefficient=event["coefficient"])
            elif kind == "importance_sampling" and at + 1 == number > start:
                before = replace(before, importance_sampling=event["mode"])
        return before

    return checkpoint, cures


def _warnings(info: dict[str, Any], checkpoint: Checkpoint) -> list[str]:
    import torch

    pairs = [(str(info.get("trainer")), f"lldscope_trainer {__version__}")]
    if checkpoint.state.torch:
        pairs.append((f"torch {checkpoint.state.torch}", f"torch {torch.__version__}"))
    return [
        f"the run was recorded with {then}, and this is {now}: the replay need not agree to the bit"
        for then, now in pairs if then != now
    ]


def _replay(
    trainer: Trainer, run: Any, path: Path, step: int
) -> tuple[dict[str, bool], dict[str, float]]:
    """Do the step as it was, record it elsewhere, and compare the rows."""
    with Recorder(
        path, name="replay", config=trainer.config.to_dict(), trainer=run.info["trainer"],
        correct_rule=run.info.get("correct_rule"),
    ) as recorder:
        trainer.recorder = recorder
        trainer.step(step)
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
        self, trainer: Trainer, snapshot: Checkpoint, step: int, draws: int,
        advance: Callable[[str, int, int], None],
    ) -> None:
        self._trainer, self._snapshot, self._step = trainer, snapshot, step
        self._draws, self._advance = draws, advance

    def run(self) -> tuple[list[Result], list[dict[str, Any]]]:
        trainer = self._trainer
        trainer.restore(self._snapshot)
        sample = trainer.sample(self._step)
        influence = _influence(trainer, sample)
        changes = all_variants(trainer.config, self._snapshot.state.cures, _most_harmful(influence))
        repeats = [v for v in changes if v.repeat]
        self._total, self._done = len(changes) + len(repeats) * self._draws, 0
        deltas: dict[str, list[float | None]] = {v.name: [] for v in changes}
        for again in range(1, self._draws + 1):
            trainer.restore(self._snapshot)
            sample = trainer.sample(self._step, again)
            if not correct_rows(sample):
                self._count(len(repeats))
                continue
            for variant in repeats:
                trainer.restore(self._snapshot)
                update(trainer, sample, variant)
                deltas[variant.name].append(delta_correct(trainer, sample))
                self._count()
        results = [
            Result(v.name, m) for v, m in zip(changes, self._on_the_record(changes), strict=True)
        ]
        for result in results:
            pairs = [(v, w) for v, w in zip(deltas[result.name], deltas[AS_IT_WAS], strict=False)
                     if v is not None and w is not None]
            result.delta = interval([v for v, _ in pairs])
            result.change = interval([v - w for v, w in pairs])
        return results, influence

    def _on_the_record(self, changes: Sequence[Variant]) -> Iterator[dict[str, float | None]]:
        """What each change does to the recorded batch."""
        trainer = self._trainer
        trainer.restore(self._snapshot)
        if not trainer.config.kl_coefficient:
            trainer.load_reference()
        before = {"probe_set": probe_set(trainer)}
        sample = trainer.sample(self._step)
        for variant in changes:
            trainer.restore(self._snapshot)
            update(trainer, sample, variant)
            measures = measure(trainer, sample, before)
            em = trainer.evaluate(closed_book=False)[0]
            yield measures | {"em_greedy": em}
            self._count()

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


def interval(values: Sequence[float]) -> tuple[float, float, float] | None:
    """Mean and 95 % interval over draws by Student's t, whose quantile is approximated from the
    normal one (Abramowitz and Stegun 1964, 26.7.5; under 0.003 off from six draws on); None for
    fewer than six."""
    if len(values) < 6:
        return None
    z, nu = NormalDist().inv_cdf(0.975), len(values) - 1
    t = z + (z**3 + z) / (4 * nu) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * nu**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * nu**3)
    mean, half = fmean(values), t * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half
