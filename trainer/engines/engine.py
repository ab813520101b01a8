"""What a rollout engine does for the player: continue token sequences, and take new weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


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
        self, contexts: Sequence[Sequence[int]], limits: Sequence[int], seed: int
    ) -> list[Turn]:
        """One turn per context of token ids, in order, of at most `limits[i]` tokens."""
        ...

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Sample from these weights (Hugging Face names) from now on."""
        ...

    def close(self) -> None:
        """Give back what the engine holds."""
        ...
