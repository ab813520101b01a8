"""Who plays the rollouts: the trainer's own sampler, or vLLM."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..config import TrainConfig
from ..policy.model import Policy
from ..rollout.evaluation import Player
from ..rollout.sampler import Sampler
from ..rollout.tokens import Sampling
from .turn_player import Engine, TurnPlayer


@dataclass
class Players:
    """`sampling` plays for training, `evaluating` for evaluations; both with one engine, None where
    the policy itself samples."""

    sampling: Player
    evaluating: Player
    policy: Policy
    engine: Engine | None = None

    def sleep(self) -> None:
        """Let the engine give back what memory it can until the next sync."""
        if self.engine is not None:
            self.engine.sleep()

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
    installed or does not start."""
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
