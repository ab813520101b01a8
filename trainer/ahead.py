"""The next step's rollouts, sampled in a thread while this step's updates are made."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from .data.questions import Question
from .rollout.tokens import Rollout


@dataclass(frozen=True)
class Draw:
    """What a step begins with: this rank's questions and their group numbers, the generator that
    they are played with, the one that decides the rest of the step, and the number of updates made
    to the weights that play them."""

    step: int
    questions: Sequence[Question]
    groups: list[int]
    generator: torch.Generator
    rng: random.Random
    policy_version: int


class Ahead:
    """One step ahead at most. All random choices are in the `Draw`, so that what is sampled does
    not depend on when."""

    def __init__(self, play: Callable[[Draw], list[Rollout]], device: torch.device) -> None:
        self._play = play
        begin = (lambda: torch.cuda.set_device(device)) if device.type == "cuda" else None
        self._pool = ThreadPoolExecutor(1, "rollouts", begin)
        self._next: tuple[Draw, Future[list[Rollout]]] | None = None

    def start(self, draw: Draw) -> None:
        """Begin to play the questions with the weights that the engine has now."""
        self._next = draw, self._pool.submit(self._play, draw)

    def wait(self) -> None:
        """Until the engine is free for other weights. Raises what went wrong."""
        if self._next is not None:
            self._next[1].result()

    def take(self, step: int) -> tuple[Draw, list[Rollout]] | None:
        """What was begun for this step; None where nothing was."""
        following, self._next = self._next, None
        if following is None or following[0].step != step:
            return None
        return following[0], following[1].result()

    def forget(self) -> None:
        """The step is sampled anew, as it would be after a resume."""
        self._next = None

    def close(self) -> None:
        """Wait for what has begun."""
        self._pool.shutdown(cancel_futures=True)
