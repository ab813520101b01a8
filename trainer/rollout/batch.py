"""The tensors of one rollout batch, and scoring them under a policy."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_right

from ..environment.reward import ANSWER
from ..policy.logprobs import TokenScores, action_scores, by_tokens, pad
from ..policy.model import Policy
from .tokens import Rollout


@dataclass
class RolloutBatch:
    """N rollouts, T positions: tensors (N, T), `advantages` (N,); values in nats, 0 off the action
    tokens.

    `old`, `entropy` and `error_norm` (‖e_y − π‖² per token) are of the trainer's policy at rollout
    time: the in-process sampler measures them while it samples; `measure` computes them if another
    engine sampled, or if the sampler's policy or rounding differs. `behaviour` is the policy that
    sampled, None if its log-probabilities are `old`. The step fills in the rest: `inner` for all
    rows but those in `skipped`, `post` for those in `rescored`. `action` numbers the action of each
    token, -1 off the actions; None is a measurement that this run does not make. `answer_weight` is
    the step's β; another β than 1 needs an `answer_mask`. A NaN that was measured stays a NaN.
    """

    ids: Tensor
    mask: Tensor
    old: Tensor
    entropy: Tensor
    error_norm: Tensor
    advantages: Tensor
    lengths: list[int]
    inner: Tensor
    post: Tensor
    rescored: Tensor
    behaviour: Tensor | None = None
    ref: Tensor | None = None
    gate_open: Tensor | None = None
    penalty: Tensor | None = None
    answer_mask: Tensor | None = None
    answer_weight: float = 1.0
    weights: Tensor | None = None
    skipped: Tensor | None = None
    action: Tensor | None = None

    @classmethod
    def of(
        cls,
        rollouts: Sequence[Rollout],
        advantages: Tensor,
        device: torch.device,
        *,
        apart: bool = False,
    ) -> RolloutBatch:
        """Pad the rollouts to the right; `advantages` has shape (N,). `apart`: the in-process
        sampler's log-probabilities are `behaviour` and not `old`. In bfloat16 a key-value cache
        rounds otherwise than a whole pass, and strict LLDS gates would open on the difference."""

        def tensor(rows: Sequence[Sequence[float] | None]) -> Tensor:
            return pad([row or [0.0] for row in rows], 0.0, device)

        action = pad([r.action for r in rollouts], -1, device)  # (B, T)
        mask = (action >= 0).long()
        behaviour = None
        if apart or rollouts[0].behaviour is not None:
            behaviour = tensor([r.behaviour or r.logp for r in rollouts])
            old = entropy = error_norm = torch.zeros(mask.shape, device=device)  # until `measure`
        else:
            old = tensor([r.logp for r in rollouts])
            entropy = tensor([r.entropy for r in rollouts])
            error_norm = tensor([r.error_norm for r in rollouts])
        return cls(
            ids=pad([r.ids for r in rollouts], 0, device),
            mask=mask,
            old=old,
            entropy=entropy,
            error_norm=error_norm,
            advantages=advantages.to(device),
            lengths=[len(r.ids) for r in rollouts],
            inner=old.clone(),
            post=old.clone(),
            rescored=torch.zeros(len(rollouts), dtype=torch.bool),
            behaviour=behaviour,
            action=action,
        )

    @torch.no_grad()
    def measure(self, model: Any, passes: Sequence[Sequence[int]]) -> None:
        """Compute `old`, `entropy` and `error_norm` if another engine sampled: `model` must still
        be the policy of rollout time. `passes`: the rows of each forward pass of the updates; with
        equal weights only equal shapes round alike."""
        if self.behaviour is None:
            return
        scores = self.score_passes(
            partial(action_scores, model, entropy=True, error_norm=True), passes
        )
        assert scores.entropy is not None
        assert scores.error_norm is not None
        self.old, self.entropy, self.error_norm = scores.logp, scores.entropy, scores.error_norm
        self.inner, self.post = self.old.clone(), self.old.clone()

    def file_llds(self, where: Tensor, gate_open: Tensor, penalty: Tensor) -> None:
        """Store the LLDS term's inputs for the rows `where`."""
        if self.gate_open is None or self.penalty is None:
            self.gate_open = torch.zeros_like(self.mask, dtype=torch.bool)
            self.penalty = torch.zeros_like(self.old)
        self.gate_open[where] = gate_open
        self.penalty[where] = penalty

    def delta_sum(self, among: Tensor) -> tuple[float, int]:
        """(sum, number) of Δ = Σ (log π_post − log π_old), in nats per response, over the re-scored
        rollouts in `among` (N,) bool."""
        delta = (self.post - self.old).sum(1).cpu()
        mask = among & self.rescored
        return float(delta[mask].sum()), int(mask.sum())

    def score(self, model: Any, rows: Sequence[int], micro_tokens: int) -> Tensor:
        """(len(rows), T) log π of the rows' action tokens under `model`, 0 elsewhere; in passes of
        at most so many tokens (`logprobs.by_tokens`)."""
        passes = by_tokens(self.lengths, rows, micro_tokens)
        return self.score_passes(partial(action_scores, model), passes, rows).logp

    def score_passes(
        self,
        forward: Callable[[Tensor, Tensor], TokenScores],
        passes: Sequence[Sequence[int]],
        rows: Sequence[int] | None = None,
    ) -> TokenScores:
        """Apply `forward` (token ids and action mask of a pass's rows) to one pass after another;
        (N, T), or (len(rows), T) if the passes have only these rows."""
        device, width = self.ids.device, self.ids.shape[1]
        parts = []
        for part in passes:
            where = torch.tensor(part, device=device)
            longest = max(self.lengths[row] for row in part)
            parts.append(forward(self.ids[where, :longest], self.mask[where, :longest]))  # (b, t)
        place = {row: i for i, row in enumerate(row for part in passes for row in part)}
        back = torch.tensor([place[row] for row in rows or range(len(place))], device=device)

        def whole(pieces: Sequence[Tensor | None]) -> Tensor | None:
            blocks = [pad_right(p, (0, width - p.shape[1])) for p in pieces if p is not None]
            return torch.cat(blocks)[back] if blocks else None

        logp, *others = map(whole, zip(*parts, strict=True))
        assert logp is not None
        return TokenScores(logp, *others)


def answer_mask(policy: Policy, rollouts: Sequence[Rollout], shape: torch.Size) -> Tensor:
    """(N, T), 1 on the tokens of each rollout's last answer, between its tags. A token that
    straddles the border counts as inside."""
    mask = torch.zeros(shape, dtype=torch.int64)
    for i, rollout in enumerate(rollouts):
        if rollout.episode.actions[-1].kind != "answer":
            continue
        last = len(rollout.episode.actions) - 1
        where = [t for t, action in enumerate(rollout.action) if action == last]
        ids = [rollout.ids[t] for t in where]
        *_, span = ANSWER.finditer(policy.decode(ids))
        first, end = (_tokens_within(policy, ids, n) for n in (span.start(1), span.end(1) - 1))
        mask[i, torch.tensor(where[first : end + 1], dtype=torch.long)] = 1
    return mask.to(policy.device)


def _tokens_within(policy: Policy, ids: list[int], n: int) -> int:
    """The number of leading tokens that decode to at most `n` characters, found in a few
    decodes."""
    return bisect(range(1, len(ids)), n, key=lambda k: len(policy.decode(ids[:k])))
