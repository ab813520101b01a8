"""A recorder that holds what the trainer records in memory; very short runs for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import torch
from lldscope_trainer import loop
from lldscope_trainer.algorithms.update import Updater, UpdateStats
from lldscope_trainer.config import TrainConfig
from lldscope_trainer.optim.processes import Processes
from lldscope_trainer.rollout.batch import RolloutBatch
from lldscope_trainer.train import Trainer

import lldscope
from lldscope.core.schema import TABLES

SMALL = [
    "prompts=4", "group_size=4", "updates=4", "max_turns=2", "eval_questions=0", "tokens_every=1",
]
BRIEF = [*SMALL, "prompts=1", "group_size=2", "updates=1", "max_turns=1", "turn_tokens=4",
         "tokens_every=0", "rescore_share=0"]
"""Of runs whose rollouts do not matter: four tokens long, and nothing is scored again."""

ALONE = Processes(0, 1, 0, torch.device("cpu"))


class Keeper(lldscope.NullRecorder):
    """Holds what the trainer records: by table, the column dictionary of each call."""

    def __init__(self) -> None:
        self.tables: dict[str, list[dict]] = {}
        self.events: list[dict] = []

    def __getattribute__(self, name):
        if name in TABLES or name == "step":
            table = "steps" if name == "step" else name
            return lambda **columns: self.tables.setdefault(table, []).append(columns)
        return super().__getattribute__(name)

    def event(self, kind, step=None, **details):
        self.events.append({"kind": kind, "step": step, **details})

    def rows(self, table: str) -> list[dict]:
        """One dictionary per row, scalars repeated, masked and None as None."""
        rows = []
        for columns in self.tables[table]:
            lengths = [len(v) for v in columns.values() if isinstance(v, list | np.ndarray)]
            assert len(set(lengths)) <= 1, f"ragged columns in {table}"
            for i in range(lengths[0] if lengths else 1):
                row = {}
                for name, v in columns.items():
                    value = v[i] if isinstance(v, list | np.ndarray) else v
                    row[name] = None if value is np.ma.masked else value
                rows.append(row)
        return rows


def train(
    config: TrainConfig,
    recorder: Any,
    *,
    processes: Any = None,
    checkpoint: Any = None,
    **options: Any,
) -> loop.Ending:
    """Train as configured, from the start or from `checkpoint`; for `options` see `loop.run`."""
    trainer = Trainer(config, recorder, processes=processes, checkpoint=checkpoint)
    return loop.run(trainer, recorder, **options)


def batch_of(
    ids: torch.Tensor, mask: torch.Tensor, lengths: list[int], advantages: torch.Tensor,
    **measurements: torch.Tensor,
) -> RolloutBatch:
    """Made-up rollouts; what a step measures is 0 without one."""
    names = ("old", "entropy", "error_norm", "inner", "post")
    values = {name: torch.zeros(ids.shape, device=ids.device) for name in names} | measurements
    rescored = torch.zeros(len(ids), dtype=torch.bool)
    return RolloutBatch(
        ids=ids, mask=mask, lengths=lengths, advantages=advantages, rescored=rescored, **values
    )


def one_step(
    updater: Updater,
    batch: RolloutBatch,
    step: int = 0,
    *,
    seed: int = 0,
    answer_weight: float = 1.0,
) -> list[UpdateStats]:
    """The updates of one step of the batch, minibatches drawn with this seed."""
    minibatches = updater.minibatches(batch, random.Random(seed))
    batch.answer_weight = answer_weight
    return updater.run(batch, step, minibatches)


class Rank:
    """One of several processes, which here are threads."""

    device = ALONE.device

    def __init__(self, rank: int, size: int, box: list, barrier: Barrier) -> None:
        self.rank, self.size, self._box, self._barrier = rank, size, box, barrier

    def sum(self, mine: Any, of: Callable[[list], Any] = sum) -> Any:
        self._box[self.rank] = mine
        self._barrier.wait(60)
        total = of(self._box)
        self._barrier.wait(60)
        return total

    def most(self, mine: int) -> int:
        return self.sum(mine, max)


def together(size: int, work: Callable[[Rank], Any]) -> list:
    """What each of so many ranks returns; raises what one of them raised."""
    box, barrier = [None] * size, Barrier(size)
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(work, [Rank(rank, size, box, barrier) for rank in range(size)]))
