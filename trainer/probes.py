"""Probes: measurements too costly for every step, made every `probes_every` steps before updates.

On a few mixed groups, from one more forward pass, after arXiv 2505.18830 (NTHR) and
arXiv 2512.04220 v2, Def. A.3:
- `hidden_similarity`, per group: the cosine between correct and incorrect responses in the final
  hidden states that predict their action tokens. Every response has the same weight.
- `nthr_influence`, per incorrect response: how much its tokens push the group's correct responses
  down, mean over its tokens.

And on a fixed set, the correct responses of the greedy evaluation before the first step:
`probe_set_logp`, per response: Σ log π of its action tokens, in nats. Δ is about what the policy
writes now; this probe about what it knew before the training.

A probe draws no random numbers, so it does not change the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lldscope.recording.rescore import mixed_groups

from .config import TrainConfig
from .policy.head import head_logits
from .policy.logprobs import hidden_before, logits_rows, sequence_logps
from .policy.model import Policy
from .records import response_ids
from .rollout.batch import RolloutBatch
from .rollout.tokens import Rollout

SET_SIZE = 32
"""Responses in the fixed set, at most."""

Response = tuple[list[int], list[int]]
"""The fixed set: tokens, prompt and tool text included, and a mask that is 1 on the policy's own
tokens."""


def probe_group(
    model: Any, ids: Tensor, action_mask: Tensor, correct: Tensor
) -> tuple[float, Tensor]:
    """The similarity of the responses of one question, and the influence (rows,) of each, also of
    the correct ones.

    ids, action_mask (rows, T), padded on the right; correct (rows,) bool, of both classes.

    With h the final hidden state that predicts a token y and g = e_y − π, both of the policy given,
    the influence of a token is s = gᵀ M⁺ h, M⁺ = Σ g⁺ h⁺ᵀ over the tokens of correct responses:
    the double sum Σ ⟨g⁺, g⟩⟨h⁺, h⟩ in one product (arXiv 2505.18830, the score of NTHR). g is
    restricted to the tokens that occur in the group's responses, its probabilities not
    renormalized, as there. float32.
    """
    mask = action_mask.bool()
    row, column = mask.nonzero().T  # of the n action tokens
    hidden = hidden_before(model, ids, row * ids.shape[1] + column).float()  # (n, H)
    errors = _errors(model, hidden, ids[mask])  # (n, different tokens)
    right = correct[row]
    score = ((errors @ (errors[right].T @ hidden[right])) * hidden).sum(-1)
    n_tokens = mask.sum(1)
    centres = hidden.new_zeros(len(ids), hidden.shape[-1]).index_add(0, row, hidden)
    centres = centres / n_tokens[:, None]
    similarity = torch.cosine_similarity(centres[correct].mean(0), centres[~correct].mean(0), dim=0)
    return float(similarity), hidden.new_zeros(len(ids)).index_add(0, row, score) / n_tokens


def _errors(model: Any, hidden: Tensor, targets: Tensor) -> Tensor:
    """g = e_y − π of n tokens, (n, number of different targets)."""
    vocabulary, column = targets.unique(return_inverse=True)
    size = logits_rows(model)
    parts = []
    for h, y in zip(hidden.split(size), column.split(size), strict=True):
        logits = head_logits(model, h)
        error = -(logits[:, vocabulary] - logits.logsumexp(-1, keepdim=True)).exp()
        parts.append(error.scatter_add(1, y[:, None], torch.ones_like(error[:, :1])))
    return torch.cat(parts)


class Probes:
    """The probes of one run, on this rank: its own groups; the fixed set lives on rank 0, which
    plays the evaluations."""

    def __init__(self, config: TrainConfig, policy: Policy) -> None:
        self._config = config
        self._policy = policy
        self._set: list[Response] = []
        self._collecting = config.probes_every > 0

    @property
    def state(self) -> tuple[Response, ...]:
        """The fixed set, for a checkpoint."""
        return tuple(self._set)

    def restore(self, state: Sequence[Response]) -> None:
        """Restore the fixed set from a `state`."""
        self._set = list(state)
        self._collecting = False

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Before the first step, add these correct responses to the fixed set, in order, until it
        is full."""
        if self._collecting:
            room = SET_SIZE - len(self._set)
            correct = [r for r in rollouts if r.episode.correct][:room]
            self._set += [(r.ids, [int(a >= 0) for a in r.action]) for r in correct]

    @torch.inference_mode()
    def record(
        self,
        recorder: Any,
        step: int,
        batch: RolloutBatch,
        correct: Sequence[bool],
        groups: Sequence[int],
    ) -> None:
        """Measure and record if the step is due. The model must hold all its weights."""
        self._collecting = False
        c = self._config
        if not c.probes_every or step % c.probes_every:
            return
        right = torch.tensor(correct, device=batch.ids.device)
        ids = response_ids(groups, c.group_size)
        # A step's questions are in random order, so its first groups are a random choice.
        for rows in list(mixed_groups(correct, groups).values())[: c.probe_groups]:
            longest = max(batch.lengths[i] for i in rows)
            similarity, influence = probe_group(
                self._policy.model, batch.ids[rows, :longest], batch.mask[rows, :longest],
                right[rows],
            )
            wrong = [i for i, row in enumerate(rows) if not correct[row]]
            recorder.probes(
                step=step, probe="hidden_similarity", group_id=groups[rows[0]], value=similarity
            )
            recorder.probes(
                step=step, probe="nthr_influence", group_id=groups[rows[0]],
                response_id=ids[rows][wrong], value=influence.cpu().numpy()[wrong],
            )
        if self._set:
            recorder.probes(
                step=step, probe="probe_set_logp", response_id=np.arange(len(self._set)),
                value=self.set_logps(),
            )

    def set_logps(self) -> np.ndarray:
        """(responses of the fixed set,): Σ log π of each, nats."""
        ids, masks = zip(*self._set, strict=True)
        logps = sequence_logps(self._policy.model, ids, masks, self._config.micro_tokens)
        return np.array([float(logp.sum()) for logp in logps])
