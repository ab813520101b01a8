"""Sampling: a batch of questions becomes rollouts, many turns each.

Position by position: the shortest rows run and get their next token, and longer rows wait until the
shortest are as long. Text that is not sampled goes through the model in one pass: all prompts
together, and a tool's answer together with the token that ended the turn. So rows that run together
share one position in the key-value cache, and need no mask. With `shared_prefixes` all rows run
together, each at its own position: a pass of a language model takes as long as reading its weights,
so fewer passes win; and one of several rows with the same tokens runs for all. Every sampled token
keeps its log-probability under the *full* distribution at temperature 1,
whatever the sampling settings were: with an in-process policy that is `logp_old`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..data.datasets import Question
from ..environment.protocol import Environment
from ..policy.head import head_logits
from ..policy.kvcache import RowCache, bytes_per_token
from ..policy.logprobs import compute, pad
from ..policy.model import Policy
from .tokens import Rollout, Sampling, TokenProtocol

CACHE_BYTES = 4 * 2**30
"""Bytes of keys and values of the rows that are played at once; further rows follow. A pass over a
subset needs a copy of theirs in addition."""
LIKELIEST = 64
"""Candidate tokens for the nucleus: sorting a whole vocabulary takes several times longer."""
FINISHED_SHARE = 0.15
"""Share of finished rows at which they are dropped from the cache: dropping copies the cache."""
COPY_SHARE = 0.8
"""Below this share of the cache's rows, their keys and values are copied out for a pass. Above it
all rows are run: waiting rows have their own tokens at that position, and the pass rewrites what is
already there."""


@dataclass
class Row:
    """A rollout in progress: its slot in the key-value cache, its number of cached tokens, the
    tokens of the current turn, and log π, entropy and ‖e_y − π‖² of every token so far."""

    rollout: Rollout
    slot: int = 0
    n_cached: int = 0
    turn: list[int] = field(default_factory=list)
    scores: tuple[list[float], list[float], list[float]] = field(
        default_factory=lambda: ([], [], [])
    )

    def __post_init__(self) -> None:
        self.rollout.logp, self.rollout.entropy, self.rollout.error_norm = self.scores

    def append(self, token: int, action: int = -1, *values: float) -> None:
        """Append a token with its action number, and its measurements if it was sampled."""
        self.rollout.ids.append(token)
        self.rollout.action.append(action)
        for scores, value in zip(self.scores, values or (0.0, 0.0, 0.0), strict=True):
            scores.append(value)

    @property
    def finished(self) -> bool:
        return self.rollout.episode.done

    @property
    def length(self) -> int:
        return len(self.rollout.ids)

    @property
    def n_uncached(self) -> int:
        """The number of tokens that the model has not processed."""
        return self.length - self.n_cached


def _running(rows: Sequence[Row], together: bool) -> list[Row]:
    """The rows that get a token now: the unfinished rows that are furthest behind, or all
    unfinished ones. None if all are finished."""
    unfinished = [row for row in rows if not row.finished]
    if together:
        return unfinished
    position = min((row.length for row in unfinished), default=0)
    return [row for row in unfinished if row.length == position]


def _kinds(rows: Sequence[Row]) -> tuple[list[Row], list[int]]:
    """One row of each kind (rows with the same tokens are of one kind), and the kind of each
    row."""
    kinds: dict[tuple[int, ...], int] = {}
    of = [kinds.setdefault(tuple(row.rollout.ids), len(kinds)) for row in rows]
    first = dict(zip(reversed(of), reversed(rows), strict=True))
    return [first[kind] for kind in range(len(kinds))], of


class Sampler:
    """Plays questions in an environment with a policy. Randomness is the caller's generator. Every
    turn ends at its closing tag; turn_end=length is not possible, because each sampled token is in
    the cache before the turn is cut."""

    def __init__(self, policy: Policy, sampling: Sampling) -> None:
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
        rows = []
        for question in questions:
            episode, prompt = self._protocol.begin(environment, question)
            rows.append(Row(Rollout(episode, [], [])))
            for token in prompt:
                rows[-1].append(token)
        size = CACHE_BYTES // (bytes_per_token(self._policy.model) * self._sampling.sequence_tokens)
        size = max(1, size)
        # Once, not per token: autocast keeps its casts of the weights.
        with compute(self._policy.model):
            for first in range(0, len(rows), size):
                self._play(rows[first : first + size], environment, generator)
        return [row.rollout for row in rows]

    def _play(self, rows: list[Row], environment: Environment, generator: torch.Generator) -> None:
        reader = _Reader(self._policy, rows, self._sampling.sequence_tokens)
        shared = getattr(self._policy.model, "shared_prefixes", False)
        while running := _running(rows, together=shared):
            turn_ended = []
            draws = self._draw(*reader.hidden(running), generator)
            for row, token, logp, entropy, error in zip(running, *draws, strict=True):
                row.append(token, len(row.rollout.episode.actions), logp, entropy, error)
                row.turn.append(token)
                if self._turn_ends(row):
                    turn_ended.append(row)
            if turn_ended:
                self._respond(turn_ended, environment)

    def _draw(self, hidden: Tensor, of: Tensor | None, generator: torch.Generator) -> list[list]:
        """Draw tokens for B rows, with log π, entropy and ‖e_y − π‖²; B of each. `hidden` (m, H)
        are the distinct states; `of` (B,) maps rows to states, None if each row has its own."""
        logits = head_logits(self._policy.model, hidden)  # (m, V)
        logps = logits.log_softmax(-1)
        probs = logps.exp()
        tokens = self._choose(logits, probs, generator, of)
        each = torch.arange(len(tokens), device=tokens.device) if of is None else of
        logp = logps[each, tokens]
        entropy = -(probs * logps).nan_to_num(0.0).sum(-1)[each]
        error = 1 - 2 * logp.exp() + probs.square().sum(-1)[each]
        return [tokens.tolist(), *torch.stack([logp, entropy, error]).tolist()]

    def _choose(
        self, logits: Tensor, probs: Tensor, generator: torch.Generator, of: Tensor | None = None
    ) -> Tensor:
        """Draw a token for each row; `of` maps rows to distributions (None: in order)."""
        s, each = self._sampling, slice(None) if of is None else of
        if s.temperature == 0:
            return logits.argmax(-1)[each]
        if s.temperature != 1:
            probs = (logits / s.temperature).softmax(-1)
        if s.top_p < 1:
            probs = _nucleus(probs, s.top_p)
        # One random number per row. torch.multinomial draws one per token of the vocabulary, and on
        # another kind of processor, or with another build of torch, others.
        cdf = probs.cumsum(-1, dtype=torch.float64)[each]
        u = torch.rand(len(cdf), 1, dtype=torch.float64, device=probs.device, generator=generator)
        tokens = torch.searchsorted(cdf, u * cdf[:, -1:], right=True)
        return tokens[:, 0].clamp(max=probs.shape[-1] - 1)

    def _turn_ends(self, row: Row) -> bool:
        length = len(row.turn)
        if row.turn[-1] == self._eos_id or self._protocol.closes(row.turn, length):
            return True
        full = len(row.rollout.ids) >= self._sampling.sequence_tokens
        if full or length >= self._sampling.turn_tokens:
            row.rollout.truncated = True
            return True
        return False

    def _respond(self, rows: list[Row], environment: Environment) -> None:
        """Let the environment answer finished turns, and append its text."""
        rollouts = [row.rollout for row in rows]
        observations = self._protocol.respond(environment, rollouts, [row.turn for row in rows])
        for row, tokens in zip(rows, observations, strict=True):
            row.turn = []
            for token in tokens:
                row.append(token)


class _Reader:
    """Runs the decoder over the rows' new tokens, and keeps the final hidden state of each row."""

    def __init__(self, policy: Policy, rows: list[Row], capacity: int) -> None:
        self._decoder = policy.model.get_decoder()
        self._device = policy.device
        self._cache = RowCache(policy.model.config.num_hidden_layers, capacity, len(rows))
        self._capacity = capacity
        self._shared = getattr(policy.model, "shared_prefixes", False)
        self._assign_slots(rows)

    def hidden(self, rows: list[Row]) -> tuple[Tensor, Tensor | None]:
        """The distinct states after the rows' last tokens (m, H), and the state of each row
        (len(rows),), None if each has its own. All rows that have received text are read in one
        pass."""
        self._drop_finished()
        read = self._read_kinds if self._shared else self._read
        read([row for row in rows if row.n_uncached == 1])
        if any(row.n_uncached > 1 for row in rows):
            unfinished = [row for row in self._rows if not row.finished]
            read([row for row in unfinished if row.n_uncached > 1])
        if not self._shared:
            return self._last[self._slots(rows)], None
        different, of = _kinds(rows)
        return self._last[self._slots(different)], torch.tensor(of, device=self._device)

    def _read_kinds(self, rows: list[Row]) -> None:
        """Run one row of each kind to its end, padded on the right; the other rows get its
        results."""
        if not rows:
            return
        different, of = _kinds(rows)
        starts = torch.tensor([row.n_cached for row in different], device=self._device)
        pieces = [row.rollout.ids[row.n_cached :] for row in different]
        ids = pad(pieces, 0, self._device)  # (B, T)
        # Behind a row's end there is padding, which nothing looks at before it is overwritten.
        positions = starts[:, None] + torch.arange(ids.shape[1], device=self._device)
        positions = positions.clamp(max=self._capacity - 1)
        end = int(positions.max()) + 1
        sees = torch.arange(end, device=self._device) <= positions[:, None, :, None]
        slots = self._slots(different)
        self._cache.choose(end - ids.shape[1], slots, positions)
        hidden = self._decoder(
            input_ids=ids, position_ids=positions, attention_mask=sees,
            past_key_values=self._cache, use_cache=True,
        ).last_hidden_state  # (B, T, H)
        ends = torch.tensor([len(piece) - 1 for piece in pieces], device=self._device)
        last = hidden[torch.arange(len(ends), device=self._device), ends]  # (B, H)
        if not hasattr(self, "_last"):
            self._last = hidden.new_empty(len(self._rows), hidden.shape[-1])
        whose, to = torch.tensor(of, device=self._device), self._slots(rows)
        self._last[to] = last[whose]
        if len(different) < len(rows):
            self._cache.copy(slots[whose], to, positions[whose])
        for row in rows:
            row.n_cached = row.length

    def _read(self, rows: list[Row]) -> None:
        """Run the rows to their ends, from the earliest unread position, padded on the right."""
        if not rows:
            return
        start = min(row.n_cached for row in rows)
        width = max(row.length for row in rows) - start
        copy = len(rows) < COPY_SHARE * len(self._rows)
        slots = self._slots(rows)
        pieces = [row.rollout.ids[start : start + width] for row in (rows if copy else self._rows)]
        ids = [[*piece, *[0] * (width - len(piece))] for piece in pieces]  # (B, width)
        self._cache.choose(start, slots if copy else None)
        hidden = self._decoder(
            input_ids=torch.tensor(ids, device=self._device),
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state  # (B, width, H)
        ends = torch.tensor([row.length - start - 1 for row in rows], device=self._device)
        among = torch.arange(len(rows), device=self._device) if copy else slots
        if start == 0:
            self._last = hidden.new_empty(len(self._rows), hidden.shape[-1])
        self._last[slots] = hidden[among, ends]
        for row in rows:
            row.n_cached = row.length

    def _drop_finished(self) -> None:
        unfinished = [row for row in self._rows if not row.finished]
        if len(unfinished) < (1 - FINISHED_SHARE) * len(self._rows):
            slots = self._slots(unfinished)
            self._cache.keep(slots)
            self._last = self._last[slots]
            self._assign_slots(unfinished)

    def _assign_slots(self, rows: list[Row]) -> None:
        self._rows = rows
        for slot, row in enumerate(rows):
            row.slot = slot

    def _slots(self, rows: list[Row]) -> Tensor:
        return torch.tensor([row.slot for row in rows], device=self._device)


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """`probs` (rows, vocabulary) restricted to the nucleus: a token is dropped if the likelier
    tokens together reach `top_p`; of equally likely tokens the first counts as likelier."""
    candidates = probs.topk(min(LIKELIEST, probs.shape[-1])).indices.sort(-1).values
    nucleus, least, last = _likeliest(probs, candidates, top_p)
    wide = least <= last  # rows whose nuclei may reach beyond the candidates
    if wide.any():
        every = torch.arange(probs.shape[-1], device=probs.device).expand_as(probs)
        nucleus[wide], *_ = _likeliest(probs[wide], every[wide], top_p)
    return nucleus


def _likeliest(probs: Tensor, among: Tensor, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """The nucleus within the tokens `among` (rows, n), in their order; the probability of its least
    likely token, and of the least likely candidate."""
    # Stable: topk and a plain sort leave equals in an order that depends on the processor.
    ordered, order = probs.gather(-1, among).sort(dim=-1, descending=True, stable=True)
    inside = ordered.cumsum(-1, dtype=torch.float64) - ordered < top_p
    ordered, last = ordered.where(inside, 0.0), ordered[:, -1]
    nucleus = torch.zeros_like(probs).scatter_(-1, among.gather(-1, order), ordered)
    return nucleus, ordered.where(inside, torch.inf).amin(-1), last
