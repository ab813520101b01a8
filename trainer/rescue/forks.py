"""Forks of a run from one checkpoint: the same steps with one thing changed, and a fair test.

All forks see the same questions in the same order and are evaluated on the same held-out questions,
so two of them are compared question by question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lldscope import Recorder, __version__

from ..checkpoint import Checkpoint, with_settings
from ..config import TrainConfig
from ..environment.reward import CORRECT_RULES
from ..train import Trainer

LEVEL = 0.05
"""Upper bound on the probability that the test ends an arm whose exact match is not below
another's."""


def changes(arm: str, config: TrainConfig, checkpoint: Checkpoint) -> dict[str, Any] | None:
    """The settings that an arm of ARMS changes; None if the run already has them."""
    cures = checkpoint.state.cures
    if arm == "half-rate":
        return {"lr": config.lr * cures.lr_share / 2}
    if arm == "llds":
        return None if cures.llds != "off" else {"llds": "action", "llds_coefficient": 0.2}
    return {}


@dataclass
class Score:
    """The result of an evaluation after `step` steps; `right` (questions,) is 0 or 1."""

    step: int
    right: NDArray[np.float64]

    @property
    def em(self) -> float:
        return float(self.right.mean())


class _Answers(Recorder):
    """A recorder that stores which questions the last greedy evaluation answered."""

    right: NDArray[np.float64] = np.zeros(0)

    def eval_questions(self, **columns: Any) -> None:
        super().eval_questions(**columns)
        if columns["name"] in ("greedy", "sampled"):
            self.right = np.asarray(columns["em"])


@dataclass
class Fork:
    """One arm, recorded as a run of its own in `folder`, in a `with`. `deltas`: mean Δ of the
    correct responses of each step, nats a response. `ended`: the steps trained when the test ended
    it."""

    arm: str
    settings: Mapping[str, Any]
    config: TrainConfig
    checkpoint: Checkpoint
    folder: Path
    scores: list[Score] = field(default_factory=list)
    deltas: list[float] = field(default_factory=list)
    ended: int | None = None

    def __post_init__(self) -> None:
        self.config = self.config.replace(**self.settings, name=f"{self.config.name}: {self.arm}")
        self.checkpoint = with_settings(self.checkpoint, self.config, self.settings)

    def __enter__(self) -> Fork:
        self._recorder = _Answers(
            self.folder, name=self.config.name, config=self.config.to_dict(),
            trainer=f"lldscope_trainer {__version__}",
            correct_rule=CORRECT_RULES[self.config.answers_from],
        )
        self._trainer = Trainer(self.config, self._recorder, checkpoint=self.checkpoint)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._trainer.close()
        self._recorder.close("finished" if kind is None else "failed")

    def advance(self, steps: int, on_step: Callable[[], object] = lambda: None) -> None:
        """Train this many steps, and evaluate on the held-out questions."""
        for _ in range(steps):
            delta = self._trainer.step(self._trainer.next_step).delta_correct
            if delta is not None:
                self.deltas.append(delta)
            on_step()
        self._trainer.evaluate()
        self.scores.append(Score(self._trainer.next_step, self._recorder.right))

    @property
    def em(self) -> float:
        """Mean exact match over the evaluations so far, equally weighted."""
        return float(np.mean([score.em for score in self.scores]))

    @property
    def delta(self) -> float | None:
        return float(np.mean(self.deltas)) if self.deltas else None


def worse(right: NDArray[np.float64], best: NDArray[np.float64]) -> float:
    """One-sided p of the exact sign test on questions that only one of two arms answered: the
    chance that so few are the first one's if both are as likely."""
    wins, losses = int((right > best).sum()), int((right < best).sum())
    n = wins + losses
    return float(sum(comb(n, k) for k in range(wins + 1)) / 2**n)


def end_losers(forks: Sequence[Fork], looks: int) -> list[Fork]:
    """After a round: end each arm that answers fewer held-out questions than the leading one, by a
    sign test at LEVEL over all looks and pairs of arms (Bonferroni). Returns the remaining arms."""
    running = [fork for fork in forks if fork.ended is None]
    leader = max(running, key=lambda fork: fork.scores[-1].em)
    level = LEVEL / (looks * max(1, len(forks) * (len(forks) - 1)))
    for fork in running:
        if fork is not leader and worse(fork.scores[-1].right, leader.scores[-1].right) < level:
            fork.ended = fork.scores[-1].step
    return [fork for fork in running if fork.ended is None]


def winner(forks: Sequence[Fork]) -> Fork:
    """Among the arms that were not ended, the one with the highest mean exact match over the
    rounds; ties are broken by the highest mean Δ of correct responses."""
    left = [fork for fork in forks if fork.ended is None]
    return max(left, key=lambda fork: (fork.em, fork.delta or 0.0))
