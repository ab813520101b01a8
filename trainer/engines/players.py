"""Plays rollouts with the trainer's own sampler, or with an engine that writes whole turns (vLLM).

Both follow the same rules (tokens.py); only the source of tokens and log-probabilities differs.
Turns do not proceed in rounds: the environment answers a finished turn in a thread, and its rollout
is back in the engine a few engine steps later, while longer turns are still being written. A
rollout enters when the engine's key-value cache has room for it beside those under way, so that
their keys and values stay there between turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..config import TrainConfig
from ..data.datasets import Question
from ..environment.protocol import Environment
from ..policy.model import Policy
from ..rollout.sampler import Sampler
from ..rollout.tokens import Completion, Rollout, Sampling, TokenProtocol

TOOL_STEPS = 4
"""Engine steps until the rollout of a finished turn continues: time for the tool to answer. The
number is fixed, so that batching does not depend on the tool's speed."""


class TurnPlayer:
    """Plays questions in an environment; `engine` (`vllm_engine.VllmEngine`) draws the tokens.

    The engine knows temperature and top_p, and for turn_end=tag where to stop; what it writes
    beyond a closing tag is dropped here.
    """

    def __init__(self, policy: Policy, engine: Any, sampling: Sampling) -> None:
        self._engine = engine
        self._sampling = sampling
        self._protocol = TokenProtocol(policy, sampling)

    def play(
        self, environment: Environment, questions: Sequence[Question], generator: torch.Generator
    ) -> list[Rollout]:
        """One rollout per question, in order; every turn has its own seed from the generator.
        Raises UsageError like `TokenProtocol.begin`."""
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
        """Whether the cache has room for one more rollout beside those under way, each with its
        next turn and the tool's answer. If they grow further, the engine drops keys and values of
        some and recomputes them."""
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
        self, environment: Environment, rollouts: Sequence[Rollout], turns: dict[int, Completion]
    ) -> None:
        """Append these turns, up to their closing tags, and the environment's answers."""
        speaking = [rollouts[row] for row in turns]
        ids = [self._take(r, turn) for r, turn in zip(speaking, turns.values(), strict=True)]
        observations = self._protocol.respond(environment, speaking, ids)
        for rollout, tokens in zip(speaking, observations, strict=True):
            _append(rollout, tokens)

    def _take(self, rollout: Rollout, turn: Completion) -> list[int]:
        """Append a turn up to its closing tag; returns its tokens."""
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


@dataclass
class Players:
    """`sampling` plays for training, `evaluating` for evaluations; both with one engine, None if
    the policy itself samples."""

    sampling: Sampler | TurnPlayer
    evaluating: Sampler | TurnPlayer
    policy: Policy
    engine: Any = None

    def sleep(self) -> None:
        """Let the engine release memory until the next sync."""
        if self.engine is not None:
            self.engine.sleep()

    def sync(self) -> None:
        """Let the engine sample from the policy's current weights."""
        if self.engine is not None:
            self.engine.sync(self.policy.model.state_dict().items())

    def close(self) -> None:
        """Release everything that the engine holds."""
        if self.engine is not None:
            self.engine.close()


def sampling_of(config: TrainConfig) -> Sampling:
    """The sampling settings of the configuration: how tokens are drawn, and where turns and
    rollouts are cut."""
    names = Sampling.__dataclass_fields__
    return Sampling(**{k: v for k, v in config.to_dict().items() if k in names})


def make_player(config: TrainConfig, policy: Policy) -> Players:
    """The players named by `config.engine`. Raises LldscopeError if the engine is not installed or
    does not start."""
    sampling = sampling_of(config)
    evaluating = replace(sampling, temperature=config.eval_temperature)
    if config.engine == "in-process":
        return Players(Sampler(policy, sampling), Sampler(policy, evaluating), policy)
    from .vllm_engine import VllmEngine

    engine = VllmEngine(config, policy.eos_id)
    players = Players(
        TurnPlayer(policy, engine, sampling), TurnPlayer(policy, engine, evaluating), policy, engine
    )
    players.sync()  # the policy may be further than the model's files
    return players
