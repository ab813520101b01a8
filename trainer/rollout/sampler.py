"""Sampling: a batch of questions becomes rollouts, many turns each, in lock step.

All rows start at position 0 and move one token at a time. A row's next token is either forced
(the rest of its prompt, tool text) or sampled, so rows need no padding and share one position in
the key-value cache. Every sampled token keeps its log-probability under the *full* distribution at
temperature 1, whatever the sampling settings were: with an in-process policy that is `logp_old`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lldscope.core.errors import UsageError

from ..data.questions import Question
from ..environment.protocol import Environment
from ..policy.kvcache import RowCache
from ..policy.logprobs import head_logits
from ..policy.model import Policy
from .tokens import Rollout, Sampling, TokenProtocol

LIKELIEST = 64
"""Tokens looked at first for the nucleus: sorting a whole vocabulary takes several times longer."""
DEAD_SHARE = 0.15
"""Finished rows are carried along until they are this share: dropping them copies the cache."""


@dataclass
class _Row:
    """A rollout in the making: tokens still to be forced, tokens of the turn being written, and
    log π, entropy and ‖e_y − π‖² of every token so far."""

    rollout: Rollout
    forced: deque[int]
    turn: list[int] = field(default_factory=list)
    measured: tuple[list[float], list[float], list[float]] = field(
        default_factory=lambda: ([], [], [])
    )

    def __post_init__(self) -> None:
        self.rollout.logp, self.rollout.entropy, self.rollout.error_norm = self.measured

    def append(self, token: int, action: int, *values: float) -> None:
        self.rollout.ids.append(token)
        self.rollout.action.append(action)
        for measured, value in zip(self.measured, values, strict=True):
            measured.append(value)


class Sampler:
    """Plays questions in an environment with a policy. Randomness is the caller's generator.

    Raises UsageError for turn_end=length: rows move in lock step and what was sampled has been fed
    back by the time a turn is cut, so nothing can be taken back.
    """

    def __init__(self, policy: Policy, sampling: Sampling) -> None:
        if sampling.turn_end != "tag":
            raise UsageError(
                f"turn_end={sampling.turn_end} is not possible with engine=in-process, which feeds "
                "every token back as it draws it: take turn_end=tag, or engine=vllm or server"
            )
        self._policy = policy
        self._sampling = sampling
        self._protocol = TokenProtocol(policy, sampling)
        self._eos_id = policy.eos_id  # a tokenizer takes long to look it up

    @torch.inference_mode()
    def play(
        self, environment: Environment, questions: Sequence[Question], generator: torch.Generator
    ) -> list[Rollout]:
        """One rollout per question, in order. Tokens go to the environment as text; what comes back
        is encoded on its own, so the ids the policy sampled are never re-tokenised. Raises
        UsageError as `TokenProtocol.begin`."""
        begun = [self._protocol.begin(environment, question) for question in questions]
        rows = [_Row(Rollout(episode, [], []), deque(tokens)) for episode, tokens in begun]
        if not rows:
            return []
        cache = RowCache(self._policy.model.config.num_hidden_layers)
        alive = list(range(len(rows)))
        # What all prompts have room for goes through the model in one piece.
        width = min(len(row.forced) for row in rows)
        ids = [[self._force(row) for _ in range(width)] for row in rows]
        with self._policy.compute():  # once, not per token: autocast keeps its casts of the weights
            while True:
                hidden = self._forward(ids, cache)
                ids = self._advance([rows[i] for i in alive], hidden, environment, generator)
                living = [n for n, i in enumerate(alive) if not rows[i].rollout.episode.done]
                if not living:
                    return [row.rollout for row in rows]
                if len(living) < (1 - DEAD_SHARE) * len(alive):
                    cache.keep(torch.tensor(living, device=self._policy.device))
                    alive, ids = [alive[n] for n in living], [ids[n] for n in living]

    def _forward(self, ids: list[list[int]], cache: RowCache) -> Tensor:
        """(rows, hidden size) of the last position."""
        tokens = torch.tensor(ids, device=self._policy.device)
        decoder = self._policy.model.get_decoder()
        out = decoder(input_ids=tokens, past_key_values=cache, use_cache=True)
        return out.last_hidden_state[:, -1]

    def _advance(
        self,
        rows: list[_Row],
        hidden: Tensor,
        environment: Environment,
        generator: torch.Generator,
    ) -> list[list[int]]:
        """Append one token to every living row, forced or sampled; returns the tokens."""
        free = [n for n, row in enumerate(rows) if not row.forced and not row.rollout.episode.done]
        ended = []
        if free:
            drawn = self._draw(hidden[torch.tensor(free, device=hidden.device)], generator)
            for n, token, logp, entropy, error in zip(free, *drawn, strict=True):
                row = rows[n]
                row.append(token, len(row.rollout.episode.actions), logp, entropy, error)
                row.turn.append(token)
                if self._turn_ends(row):
                    ended.append(row)
        tokens = []
        sampled = set(free)
        for n, row in enumerate(rows):
            if n not in sampled and not row.rollout.episode.done:
                self._force(row)
            tokens.append([row.rollout.ids[-1]])
        if ended:
            self._respond(ended, environment)
        return tokens

    def _draw(self, hidden: Tensor, generator: torch.Generator) -> list[list]:
        """Tokens drawn for rows of hidden states, with log π, entropy and ‖e_y − π‖²."""
        logits = head_logits(self._policy.model, hidden)
        logps = logits.log_softmax(-1)
        probs = logps.exp()
        tokens = self._choose(logits, probs, generator)
        chosen = logps.gather(-1, tokens[:, None])[:, 0]
        entropy = -(probs * logps).nan_to_num(0.0).sum(-1)
        error = 1 - 2 * chosen.exp() + probs.square().sum(-1)
        return [tokens.tolist(), *torch.stack([chosen, entropy, error]).tolist()]

    def _choose(self, logits: Tensor, probs: Tensor, generator: torch.Generator) -> Tensor:
        s = self._sampling
        if s.temperature == 0:
            return logits.argmax(-1)
        if s.temperature != 1:
            probs = (logits / s.temperature).softmax(-1)
        if s.top_p < 1:
            probs = _nucleus(probs, s.top_p)
        # One random number per row. torch.multinomial draws one per token of the vocabulary, and on
        # another kind of processor, or with another build of torch, others.
        reached = probs.cumsum(-1, dtype=torch.float64)
        u = torch.rand(len(probs), 1, dtype=torch.float64, device=probs.device, generator=generator)
        drawn = torch.searchsorted(reached, u * reached[:, -1:], right=True)
        return drawn[:, 0].clamp(max=probs.shape[-1] - 1)

    def _turn_ends(self, row: _Row) -> bool:
        length = len(row.turn)
        if row.turn[-1] == self._eos_id or self._protocol.closes(row.turn, length):
            return True
        full = len(row.rollout.ids) >= self._sampling.sequence_tokens
        if full or length >= self._sampling.turn_tokens:
            row.rollout.truncated = True
            return True
        return False

    def _respond(self, rows: list[_Row], environment: Environment) -> None:
        """Let the environment answer finished turns; its text is forced from here on."""
        rollouts = [row.rollout for row in rows]
        observations = self._protocol.respond(environment, rollouts, [row.turn for row in rows])
        for row, tokens in zip(rows, observations, strict=True):
            row.turn = []
            row.forced.extend(tokens)

    def _force(self, row: _Row) -> int:
        token = row.forced.popleft()
        row.append(token, -1, 0.0, 0.0, 0.0)
        return token


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """`probs` (rows, vocabulary) without the tokens before which the likelier ones together have
    reached `top_p`; of equally likely tokens the first count as likelier."""
    looked_at = probs.topk(min(LIKELIEST, probs.shape[-1])).indices.sort(-1).values
    kept, least, last = _likeliest(probs, looked_at, top_p)
    wide = least <= last  # these rows' nuclei may reach beyond what was looked at
    if wide.any():
        every = torch.arange(probs.shape[-1], device=probs.device).expand_as(probs)
        kept[wide], *_ = _likeliest(probs[wide], every[wide], top_p)
    return kept


def _likeliest(probs: Tensor, among: Tensor, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """The nucleus of the tokens `among` (rows, n), in their order; the probability of its least
    likely token, and of the least likely one that was looked at."""
    # Stable: topk and a plain sort leave equals in an order that depends on the processor.
    ordered, order = probs.gather(-1, among).sort(dim=-1, descending=True, stable=True)
    inside = ordered.cumsum(-1, dtype=torch.float64) - ordered < top_p
    ordered, last = ordered.where(inside, 0.0), ordered[:, -1]
    kept = torch.zeros_like(probs).scatter_(-1, among.gather(-1, order), ordered)
    return kept, ordered.where(inside, torch.inf).amin(-1), last
