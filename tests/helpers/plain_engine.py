"""Engines for tests: one that samples plainly, one that says what it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from lldscope_trainer.engines.turn_player import Turn
from lldscope_trainer.environment.protocol import CLOSING
from lldscope_trainer.policy.model import Policy
from lldscope_trainer.rollout.tokens import Sampling
from torch import Tensor


class PlainEngine:
    """Draws one token at a time, one context after the other, each from a forward pass over
    everything so far. `stop` False goes on behind a closing tag, to the limit or the end."""

    def __init__(self, policy: Policy, *, temperature: float = 1.0, stop: bool = True) -> None:
        self.policy = policy
        self.temperature = temperature
        self.stop = stop

    def generate(
        self,
        contexts: Sequence[Sequence[int]],
        limits: Sequence[int],
        seed: int,
        sampling: Sampling,
    ) -> list[Turn]:
        generator = torch.Generator().manual_seed(seed)
        pairs = zip(contexts, limits, strict=True)
        return [self._turn(list(context), limit, generator) for context, limit in pairs]

    @torch.inference_mode()
    def _turn(self, context: list[int], limit: int, generator: torch.Generator) -> Turn:
        ids: list[int] = []
        logps: list[float] = []
        while len(ids) < limit:
            logits = self.policy.model(torch.tensor([context + ids])).logits[0, -1].float()
            if self.temperature == 0:
                token = int(logits.argmax())
            else:
                probs = (logits / self.temperature).softmax(-1)
                token = int(torch.multinomial(probs, 1, generator=generator))
            ids.append(token)
            logps.append(float(logits.log_softmax(-1)[token]))
            text = self.policy.decode(ids)
            if token == self.policy.eos_id or (self.stop and _closed(text)):
                return Turn(ids, logps, False)
        return Turn(ids, logps, True)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.policy.model.load_state_dict(dict(weights), strict=False)

    def sleep(self) -> None:
        pass

    def close(self) -> None:
        pass


class ScriptedEngine:
    """Says what `script(call, row, context)` gives, up to the limit; remembers its calls."""

    def __init__(self, script: Callable[[int, int, list[int]], list[int]]) -> None:
        self.script = script
        self.calls: list[tuple[list[list[int]], list[int], int]] = []

    def generate(
        self,
        contexts: Sequence[Sequence[int]],
        limits: Sequence[int],
        seed: int,
        sampling: Sampling,
    ) -> list[Turn]:
        n = len(self.calls)
        self.calls.append(([list(c) for c in contexts], list(limits), seed))
        turns = []
        for row, (context, limit) in enumerate(zip(contexts, limits, strict=True)):
            ids = self.script(n, row, list(context))
            logps = [-0.1 * (k + 1) for k in range(len(ids))]
            turns.append(Turn(ids[:limit], logps[:limit], len(ids) >= limit))
        return turns

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        pass

    def sleep(self) -> None:
        pass

    def close(self) -> None:
        pass


def _closed(text: str) -> bool:
    return any(tag in text for tag in CLOSING)
