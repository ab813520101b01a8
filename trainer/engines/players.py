"""Who plays the rollouts: the sampler in this process, or vLLM's, in it or beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch

from ..config import TrainConfig
from ..data.questions import Question
from ..environment.protocol import Environment
from ..policy.model import Policy
from ..rollout.sampler import Rollout, Sampler, Sampling
from .engine import Engine
from .turn_player import TurnPlayer

if TYPE_CHECKING:
    from .server_engine import ServerEngine
    from .vllm_engine import VllmEngine


class Player(Protocol):
    """Plays questions in an environment."""

    def play(
        self, environment: Environment, questions: Sequence[Question], generator: torch.Generator
    ) -> list[Rollout]: ...


@dataclass
class Players:
    """`sampling` plays for training, `greedy` for evaluation; both with one engine, None where the
    policy itself samples."""

    sampling: Player
    greedy: Player
    policy: Policy
    engine: Engine | None = None

    def sync(self) -> None:
        """Let the engine sample from the policy's weights as they are now."""
        if self.engine is not None:
            self.engine.sync(self.policy.named_weights())

    def close(self) -> None:
        """Give back what the engine holds."""
        if self.engine is not None:
            self.engine.close()


def sampling_of(config: TrainConfig) -> Sampling:
    """How the configuration has tokens drawn, and turns and rollouts cut."""
    names = Sampling.__dataclass_fields__
    return Sampling(**{k: v for k, v in config.to_dict().items() if k in names})


def make_player(config: TrainConfig, policy: Policy) -> Players:
    """The players that `config.engine` names. Raises LldscopeError for an engine that is not
    installed or does not answer."""
    sampling = sampling_of(config)
    greedy = replace(sampling, temperature=0.0)
    if config.engine == "in-process":
        return Players(Sampler(policy, sampling), Sampler(policy, greedy), policy)
    engine: VllmEngine | ServerEngine
    if config.engine == "vllm":
        from .vllm_engine import VllmEngine

        engine = VllmEngine(config, sampling, policy.eos_id)
    else:
        from .server_engine import ServerEngine

        engine = ServerEngine(config, sampling, policy.eos_id)
    likeliest = engine.with_sampling(greedy)
    players = Players(
        TurnPlayer(policy, engine, sampling), TurnPlayer(policy, likeliest, greedy), policy, engine
    )
    # The policy may be further than the model's files, and a server may hold another run's weights.
    players.sync()
    return players


def check_engine(config: TrainConfig) -> None:
    """Raise LldscopeError if the engine is not installed or does not answer."""
    if config.engine == "vllm":
        from .vllm_engine import need_vllm

        need_vllm()
    elif config.engine == "server":
        from .server_engine import check_server

        check_server(config)
