"""Plays questions with an engine that writes a whole turn at a time (vLLM, a server).

The same episodes as the in-process sampler's, by the same rules (tokens.py); only who draws the
tokens differs, and whose log-probabilities come with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..data.questions import Question
from ..environment.protocol import Environment
from ..policy.model import Policy
from ..rollout.tokens import Rollout, Sampling, TokenProtocol


class Turn(NamedTuple):
    """What an engine wrote after one context.

    `ids` are the tokens it sampled, the one that completes a closing tag or ends the text included.
    `logps` are their log-probabilities in nats under the policy that sampled (`behaviour`), of the
    full distribution at temperature 1 whatever the sampling settings. `truncated`: it ran into the
    limit.
    """

    ids: list[int]
    logps: list[float]
    truncated: bool


class Engine(Protocol):
    """Samples turns for many contexts at once."""

    def generate(
        self,
        contexts: Sequence[Sequence[int]],
        limits: Sequence[int],
        seed: int,
        sampling: Sampling,
    ) -> list[Turn]:
        """One turn per context of token ids, in order, of at most `limits[i]` tokens."""
        ...

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Sample from these weights (Hugging Face names) from now on; wakes from `sleep`."""
        ...

    def sleep(self) -> None:
        """Give back what memory can be given back until the next `sync`."""
        ...

    def close(self) -> None:
        """Give back what the engine holds."""
        ...


class TurnPlayer:
    """Plays questions in an environment; `engine` draws the tokens.

    The engine knows temperature and top_p, and for turn_end=tag where to stop; what it writes
    beyond a closing tag is dropped here.
    """

    def __init__(self, policy: Policy, engine: Engine, sampling: Sampling) -> None:
        self._engine = engine
        self._sampling = sampling
        self._protocol = TokenProtocol(policy, sampling)

    def play(
        self, environment: Environment, questions: Sequence[Question], generator: torch.Generator
    ) -> list[Rollout]:
        """One rollout per question, in order; the engine is asked once per turn for all that go on,
        with a seed from the generator. Raises UsageError as `TokenProtocol.begin`."""
        rollouts = []
        for question in questions:
            episode, prompt = self._protocol.begin(environment, question)
            rollout = Rollout(episode, [], [], behaviour=[])
            _append(rollout, prompt)
            rollouts.append(rollout)
        while living := [r for r in rollouts if not r.episode.done]:
            turns = self._generate(living, generator)
            turns_taken = [self._take(r, turn) for r, turn in zip(living, turns, strict=True)]
            observations = self._protocol.respond(environment, living, turns_taken)
            for rollout, tokens in zip(living, observations, strict=True):
                _append(rollout, tokens)
        return rollouts

    def _generate(self, rollouts: Sequence[Rollout], generator: torch.Generator) -> list[Turn]:
        s = self._sampling
        limits = [min(s.turn_tokens, s.sequence_tokens - len(r.ids)) for r in rollouts]
        seed = torch.randint(2**31, (), generator=generator, device=generator.device)
        return self._engine.generate([r.ids for r in rollouts], limits, int(seed), s)

    def _take(self, rollout: Rollout, turn: Turn) -> list[int]:
        """Append what counts of a turn; returns its tokens."""
        end = self._protocol.end_of_turn(turn.ids)
        if end is None:
            end = len(turn.ids)
            rollout.truncated |= turn.truncated
        _append(rollout, turn.ids[:end], len(rollout.episode.actions), turn.logps[:end])
        return turn.ids[:end]


def _append(
    rollout: Rollout, ids: Sequence[int], action: int = -1, logps: Sequence[float] = ()
) -> None:
    assert rollout.behaviour is not None
    rollout.ids += ids
    rollout.action += [action] * len(ids)
    rollout.behaviour += logps or [0.0] * len(ids)
