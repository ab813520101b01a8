"""Plays questions with an engine that writes whole turns (vLLM).

The same episodes as the in-process sampler's, by the same rules (tokens.py); only who draws the
tokens differs, and whose log-probabilities come with them.

There is no round in which every rollout takes its turn: a turn that is finished is answered by the
environment, in a thread, and its rollout is back in the engine a few engine steps later, while
longer turns are still being written. A rollout enters when the engine's key-value cache has room
for it beside those that are under way, so that their keys and values stay there between turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..data.questions import Question
from ..environment.protocol import Environment
from ..policy.model import Policy
from ..rollout.tokens import Rollout, Sampling, TokenProtocol

TOOL_STEPS = 4
"""Engine steps after which a finished turn's rollout goes on: time for the tool to answer while the
engine writes. A fixed number, so that what runs together does not depend on how fast it was."""


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
    """Writes many turns at once. `capacity`: tokens whose keys and values it can hold."""

    capacity: int

    def submit(
        self, row: int, context: Sequence[int], limit: int, seed: int, sampling: Sampling
    ) -> None:
        """Begin the turn of a row that has none under way: after these token ids, at most `limit`
        tokens."""
        ...

    def step(self) -> list[tuple[int, Turn]]:
        """Write on; the rows whose turns are finished now, with these."""
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
        """One rollout per question, in order; every turn has a seed of its own from the generator.
        Raises UsageError as `TokenProtocol.begin`."""
        rollouts = []
        for question in questions:
            episode, prompt = self._protocol.begin(environment, question)
            rollout = Rollout(episode, [], [], behaviour=[])
            _append(rollout, prompt)
            rollouts.append(rollout)
        seeds = torch.randint(
            2**62, (len(rollouts),), generator=generator, device=generator.device
        ).tolist()
        waiting = deque(range(len(rollouts)))
        running: set[int] = set()  # in the engine, or at the tool
        answers: deque[tuple[int, list[int], Future[None]]] = deque()  # (due step, rows, answer)
        n_writing = n_steps = 0
        with ThreadPoolExecutor(1, "tool") as tool:
            while waiting or running:
                go_on: list[int] = []
                while answers and (answers[0][0] <= n_steps or not n_writing + len(go_on)):
                    _, rows, answer = answers.popleft()
                    answer.result()
                    go_on += [row for row in rows if not rollouts[row].episode.done]
                    running -= {row for row in rows if rollouts[row].episode.done}
                while waiting and self._has_room(rollouts, running, waiting[0]):
                    running.add(waiting[0])
                    go_on.append(waiting.popleft())
                for row in go_on:
                    self._submit(row, rollouts[row], seeds[row])
                n_writing += len(go_on)
                if n_writing and (turns := dict(self._engine.step())):
                    n_writing -= len(turns)
                    answer = tool.submit(self._answer, environment, rollouts, turns)
                    answers.append((n_steps + TOOL_STEPS, list(turns), answer))
                n_steps += 1
        return rollouts

    def _has_room(self, rollouts: Sequence[Rollout], running: set[int], row: int) -> bool:
        """Whether the cache holds one more rollout beside those under way, each with its next turn
        and the tool's answer. They may grow beyond that: then the engine drops keys and values of
        some, and computes them again."""
        if not running:
            return True
        s = self._sampling
        tokens = sum(
            min(len(rollouts[r].ids) + s.turn_tokens + s.observation_tokens, s.sequence_tokens)
            for r in (*running, row)
        )
        return tokens <= self._engine.capacity

    def _submit(self, row: int, rollout: Rollout, seed: int) -> None:
        s = self._sampling
        limit = min(s.turn_tokens, s.sequence_tokens - len(rollout.ids))
        turn_seed = (seed + len(rollout.episode.actions)) % 2**62
        self._engine.submit(row, rollout.ids, limit, turn_seed, s)

    def _answer(
        self, environment: Environment, rollouts: Sequence[Rollout], turns: dict[int, Turn]
    ) -> None:
        """Append what counts of these turns, and what the environment answers."""
        speaking = [rollouts[row] for row in turns]
        ids = [self._take(r, turn) for r, turn in zip(speaking, turns.values(), strict=True)]
        observations = self._protocol.respond(environment, speaking, ids)
        for rollout, tokens in zip(speaking, observations, strict=True):
            _append(rollout, tokens)

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
