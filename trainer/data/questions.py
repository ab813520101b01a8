"""What the policy is asked, and which questions a step draws.

The built-in world makes its questions (`world.py`); files of them are read by `datasets.py`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lldscope.core.errors import UsageError


@dataclass(frozen=True)
class Question:
    """A question and the answers that count as right.

    `index` is unique within `data_source`. `prompt` has the messages ({"role", "content"}) a data
    set gives; None leaves the wording to the environment.
    """

    text: str
    golds: tuple[str, ...]
    data_source: str
    index: str
    prompt: tuple[dict[str, str], ...] | None = field(default=None, hash=False)

    @property
    def key(self) -> tuple[str, str]:
        """What tells one question from another: the group key of its rollouts."""
        return self.data_source, self.index


class QuestionSource(Protocol):
    """Where a step's questions come from."""

    def draw(self, step: int, n: int, rng: random.Random) -> list[Question]:
        """`n` different questions for step `step`. `rng` is the step's own generator."""
        ...


class ShuffledQuestions:
    """A list of questions, in a new order each epoch, `n` per step.

    What a step gets depends on (seed, step, n) alone, so a resumed run needs no state and `rng` is
    not touched. Questions left over at the end of an epoch are dropped, as verl's loader does:
    carried over, one could meet itself in a batch. The next epoch's order has them elsewhere.
    """

    def __init__(self, questions: Sequence[Question], *, seed: int) -> None:
        self._questions = list(questions)
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._questions)

    def draw(self, step: int, n: int, rng: random.Random) -> list[Question]:
        """The step's `n` questions. Raises UsageError if there are fewer than `n` in all."""
        steps = len(self._questions) // n
        if steps == 0:
            raise UsageError(
                f"a step takes {n} questions, the training data holds {len(self._questions)}: "
                "lower prompts or name more data"
            )
        epoch, batch = divmod(step, steps)
        if epoch != self._epoch:
            self._order = list(range(len(self._questions)))
            random.Random(f"{self._seed}|epoch {epoch}").shuffle(self._order)
            self._epoch = epoch
        return [self._questions[i] for i in self._order[batch * n : (batch + 1) * n]]
