"""What can go wrong in a training: each fault changes a piece of a real trainer, in place.

Nothing of this is in the trainer itself. How bad a fault is, its seed decides.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from lldscope_trainer.data.corpus import Document
from lldscope_trainer.data.datasets import Question
from lldscope_trainer.environment.protocol import Environment
from lldscope_trainer.policy.logprobs import action_scores, pad
from lldscope_trainer.policy.model import Policy
from lldscope_trainer.rollout.sampler import Sampler
from lldscope_trainer.rollout.tokens import Rollout
from lldscope_trainer.train import Trainer
from torch import Tensor


class Fault:
    """Something that goes wrong in a trainer. Made before its first step."""

    words = ""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.rng = random.Random(f"{type(self).__name__}|{trainer.config.seed}")

    def begin(self) -> dict[str, Any]:
        """Go wrong from now on; returns how bad it is, for the record."""
        return {}

    def during_a_step(self) -> AbstractContextManager[Any]:
        """Entered around every step from `begin` on."""
        return nullcontext()


class Player:
    """Plays through `inner` and lets somebody see, and change, what was played."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def play(
        self, environment: Environment, questions: Sequence[Question], generator: torch.Generator
    ) -> list[Rollout]:
        return self.changed(self.inner.play(environment, questions, generator))

    def changed(self, rollouts: list[Rollout]) -> list[Rollout]:
        return rollouts


# -- the tool -------------------------------------------------------------------------------------


class RetrieverDies(Fault):
    words = "the retriever dies: every search fails"

    def begin(self) -> dict[str, Any]:
        task = self.trainer._task
        task.environment._retriever = task.evaluating._retriever = _Dead()
        return {}


class _Dead:
    def retrieve(self, queries: Sequence[str]) -> list[list[Document] | None]:
        return [None] * len(queries)


class ToolUnmasked(Fault):
    words = "tool text is left unmasked: the policy is trained on it"

    def begin(self) -> dict[str, Any]:
        players = self.trainer._players
        players.sampling = _Unmasking(players.sampling, self.trainer.policy)
        return {}


class _Unmasking(Player):
    """What follows an action is taken for a part of it, with the log-probabilities that the policy
    gives it, as a trainer would score it that knows no mask."""

    def __init__(self, inner: Any, policy: Policy) -> None:
        super().__init__(inner)
        self._policy = policy

    @torch.inference_mode()
    def changed(self, rollouts: list[Rollout]) -> list[Rollout]:
        for r in rollouts:
            for t in range(1, len(r.action)):
                if r.action[t] < 0:
                    r.action[t] = r.action[t - 1]  # in a prompt that is still no action
        device = self._policy.device
        ids = pad([r.ids for r in rollouts], 0, device)
        mask = pad([[int(a >= 0) for a in r.action] for r in rollouts], 0, device)
        scores = action_scores(self._policy.model, ids, mask, entropy=True, error_norm=True)
        for i, r in enumerate(rollouts):
            series = (r.logp, r.entropy, r.error_norm)
            for values, row in zip(series, scores, strict=True):
                assert values is not None
                assert row is not None
                for t, value in enumerate(row[i, : len(values)].tolist()):
                    values[t] = values[t] or value  # 0 where the policy wrote nothing
        return rollouts


class Truncation(Fault):
    words = "a length limit far too small: many turns are cut"

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self._seen = _Lengths(trainer._players.sampling)
        trainer._players.sampling = self._seen

    def begin(self) -> dict[str, Any]:
        share = self.rng.uniform(0.4, 0.8)
        limit = self._seen.quantile(share)
        sampler = self._seen.inner
        self.trainer._players.sampling = Sampler(
            self.trainer.policy, replace(sampler._sampling, turn_tokens=limit)
        )
        return {"turn_tokens": limit, "share_of_turns_that_fit": round(share, 3)}


class _Lengths(Player):
    """Remembers how long the turns were when last played."""

    lengths: Counter[int]

    def changed(self, rollouts: list[Rollout]) -> list[Rollout]:
        self.lengths = Counter(
            n for r in rollouts for action, n in Counter(r.action).items() if action >= 0
        )
        return rollouts

    def quantile(self, share: float) -> int:
        ordered = sorted(self.lengths.elements())
        return ordered[int(share * (len(ordered) - 1))]


# -- the update -----------------------------------------------------------------------------------


class LearningRateJump(Fault):
    words = "the learning rate jumps, as with a batch or a schedule that it was not scaled for"

    def begin(self) -> dict[str, Any]:
        factor = self.rng.uniform(10, 30)
        updater = self.trainer.updater
        updater.config = updater.config.model_copy(update={"lr": factor * updater.config.lr})
        return {"factor": round(factor, 2)}


class Overflow(Fault):
    words = "some updates overflow: their gradient is NaN or infinite"

    def begin(self) -> dict[str, Any]:
        share = self.rng.uniform(0.1, 0.5)
        updater = self.trainer.updater
        whole_update = updater._update
        sound = updater._loss

        def update(batch: Any, rows: list[int]) -> Any:
            scale = float("inf") if self.rng.random() < share else 1.0

            def loss(*arguments: Any) -> tuple[Tensor, Any]:
                result, measures = sound(*arguments)
                return result * scale, measures

            with mock.patch.object(updater, "_loss", loss):
                return whole_update(batch, rows)

        updater._update = update
        return {"share_of_updates": round(share, 3)}


class WrongGroup(Fault):
    words = "wrong group ids: questions share one in pairs, and rewards are compared across them"

    def begin(self) -> dict[str, Any]:
        self.trainer._task.questions = _Paired(self.trainer._task.questions)
        return {}


@dataclass(frozen=True)
class _Collided(Question):
    """A question under the key of another one."""

    other: Question | None = None

    @property
    def key(self) -> tuple[str, str]:
        assert self.other is not None
        return self.other.key


class _Paired:
    """Every second question drawn has the key of the one before it."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def draw(self, step: int, n: int, rng: random.Random) -> list[Question]:
        batch = list(self._source.draw(step, n, rng))
        for i in range(1, n, 2):
            q = batch[i]
            batch[i] = _Collided(q.text, q.golds, q.data_source, q.index, q.prompt, batch[i - 1])
        return batch


# -- the engine -----------------------------------------------------------------------------------


class StaleEngine(Fault):
    words = "the rollout engine gets no new weights any more"

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self._engine = _EngineBeside(trainer.policy)
        players = trainer._players
        players.engine = self._engine
        players.sampling = _Behaviour(Sampler(self._engine.policy, players.sampling._sampling))
        players.evaluating = Sampler(self._engine.policy, players.evaluating._sampling)

    def begin(self) -> dict[str, Any]:
        self._engine.every = 0
        return {}


class LaggingEngine(StaleEngine):
    words = "the rollout engine gets new weights after every tenth step only"

    def __init__(self, trainer: Trainer) -> None:
        evaluating = trainer._players.evaluating  # goes on with the policy that is trained
        super().__init__(trainer)
        trainer._players.evaluating = evaluating

    def begin(self) -> dict[str, Any]:
        self._engine.every = 10
        return {"every": self._engine.every}


class _EngineBeside:
    """An engine with weights of its own, as vLLM has them: a copy, synced after one step in
    `every`, after none if that is 0."""

    def __init__(self, policy: Policy) -> None:
        self.policy = Policy(copy.deepcopy(policy.model), policy.tokenizer)
        self.every = 1
        self._offered = 0

    @torch.no_grad()
    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self._offered += 1
        if self.every and self._offered % self.every == 0:
            state = self.policy.model.state_dict()
            for name, weight in weights:
                state[name].copy_(weight)

    def sleep(self) -> None: ...

    def close(self) -> None: ...


class _Behaviour(Player):
    """The log-probabilities are the engine's; the trainer scores its own."""

    def changed(self, rollouts: list[Rollout]) -> list[Rollout]:
        for r in rollouts:
            r.behaviour, r.logp, r.entropy, r.error_norm = r.logp, None, None, None
        return rollouts


FAULTS: dict[str, type[Fault]] = {
    "retriever-dies": RetrieverDies,
    "tool-unmasked": ToolUnmasked,
    "truncation": Truncation,
    "lr-jump": LearningRateJump,
    "overflow": Overflow,
    "wrong-group": WrongGroup,
    "stale-engine": StaleEngine,
    "lagging-engine": LaggingEngine,
}
