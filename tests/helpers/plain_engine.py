"""Engines for tests: a greedy one, one that follows a script, one that writes a token
at a time. And how to have any engine write turns without an environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from lldscope_trainer.environment.protocol import CLOSING
from lldscope_trainer.policy.logprobs import action_logps
from lldscope_trainer.policy.model import Policy
from lldscope_trainer.rollout.tokens import Completion, Sampling
from torch import Tensor


class InTests:
    """What the engines of tests have in common: room for everything, and no weights to keep."""

    capacity = 10**9

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        pass

    def sleep(self) -> None:
        pass

    def close(self) -> None:
        pass


class PlainEngine(InTests):
    """Writes the likeliest token, one context after the other, each from a forward pass over
    everything so far."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.requests: list[tuple[int, list[int], int]] = []

    def submit(self, row, context, limit, seed, sampling) -> None:
        self.requests.append((row, list(context), limit))

    def step(self) -> list[tuple[int, Completion]]:
        requests, self.requests = self.requests, []
        return [(row, self._turn(*request)) for row, *request in requests]

    @torch.inference_mode()
    def _turn(self, context: list[int], limit: int) -> Completion:
        ids: list[int] = []
        logps: list[float] = []
        while len(ids) < limit:
            scores = self.policy.model(torch.tensor([context + ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(scores.argmax()))
            logps.append(float(scores.max()))
            text = self.policy.decode(ids)
            if ids[-1] == self.policy.eos_id or any(tag in text for tag in CLOSING):
                return Completion(ids, logps, False)
        return Completion(ids, logps, True)


class ScriptedEngine(InTests):
    """Says what `script(call, row, context)` gives, up to the limit; remembers its calls, one for
    each step: (contexts, limits)."""

    def __init__(self, script: Callable[[int, int, list[int]], list[int]]) -> None:
        self.script = script
        self.calls: list[tuple[list[list[int]], list[int]]] = []
        self.requests: list[tuple[int, list[int], int]] = []

    def submit(self, row, context, limit, seed, sampling) -> None:
        self.requests.append((row, list(context), limit))

    def step(self) -> list[tuple[int, Completion]]:
        requests, self.requests = self.requests, []
        n = len(self.calls)
        self.calls.append(([c for _, c, _ in requests], [limit for *_, limit in requests]))
        turns = []
        for place, (row, context, limit) in enumerate(requests):
            ids = self.script(n, place, context)
            logps = [-0.1 * (k + 1) for k in range(len(ids))]
            turns.append((row, Completion(ids[:limit], logps[:limit], len(ids) >= limit)))
        return turns


class SteppingEngine(InTests):
    """Writes one token of every turn under way in a step, as a real one does; a turn is
    `script(context)`. Remembers what began and ended, and the tokens it held at most."""

    def __init__(self, script: Callable[[list[int]], list[int]]) -> None:
        self.script = script
        self.writing: dict[int, tuple[list[int], list[int], int]] = {}
        self.log: list[tuple[str, int]] = []
        self.n_steps = self.most_rows = 0

    def submit(self, row, context, limit, seed, sampling) -> None:
        assert row not in self.writing
        self.writing[row] = (list(context), [], limit)
        self.log.append(("begin", row))
        self.most_rows = max(self.most_rows, len(self.writing))

    def step(self) -> list[tuple[int, Completion]]:
        self.n_steps += 1
        finished = []
        for row, (context, ids, limit) in list(self.writing.items()):
            whole = self.script(context)
            ids.append(whole[len(ids)])
            if len(ids) == min(len(whole), limit):
                del self.writing[row]
                self.log.append(("end", row))
                finished.append((row, Completion(ids, [-0.5] * len(ids), len(ids) < len(whole))))
        return finished


def write_turns(engine, contexts, limits, seed: int, sampling: Sampling) -> list[Completion]:
    """A turn after each context, in order."""
    for row, (context, limit) in enumerate(zip(contexts, limits, strict=True)):
        engine.submit(row, context, limit, seed + row, sampling)
    turns: dict[int, Completion] = {}
    while len(turns) < len(contexts):
        turns |= dict(engine.step())
    return [turns[row] for row in range(len(contexts))]


def gaps(policy: Policy, contexts: list[list[int]], turns: list[Completion]) -> Tensor:
    """Between the engine's log-probabilities and the trainer's, of every token of the turns."""
    apart = []
    for context, turn in zip(contexts, turns, strict=True):
        ids = torch.tensor([context + turn.ids], device=policy.model.device)
        mask = torch.ones_like(ids)
        mask[0, : len(context)] = 0
        with torch.no_grad():
            mine = action_logps(policy.model, ids, mask)[0, len(context) :].cpu()
        apart.append((mine - torch.tensor(turn.logps)).abs())
    return torch.cat(apart)


@torch.no_grad()
def disturb(policy: Policy, size: float, generator: torch.Generator) -> None:
    """Change every weight, so that none can be stale unnoticed."""
    for weight in policy.model.parameters():
        noise = torch.randn(weight.shape, generator=generator).to(weight.device)
        weight += size * weight.abs().mean() * noise
