"""The protocol in tokens: prompts, where a turn ends, what of an observation is fed, bookkeeping.

Shared by everything that plays episodes: the sampler in this process (sampler.py) and the player of
engines that generate turn by turn (engines/players.py). Sampled tokens stay as they are; text is
decoded for the environment only, and only what is fed (prompt, tool text) is ever encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jinja2 import TemplateError

from lldscope.core.errors import UsageError

from ..data.datasets import Question
from ..environment.protocol import CLOSING, TOOL_END, Environment, Episode, prompt_text
from ..policy.model import Policy

_TAIL = 16
"""Number of tokens that surely hold the longest closing tag, one byte each."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, and where turns and rollouts are cut (settings of the same names).
    Temperature 0 takes the likeliest token."""

    temperature: float = 1.0
    top_p: float = 1.0
    turn_tokens: int = 40
    observation_tokens: int = 64
    sequence_tokens: int = 400
    instruction: str = ""
    turn_end: str = "tag"
    observation_end: str = "closed"


@dataclass
class Rollout:
    """One episode in tokens. All lists are aligned to positions of `ids`; where the policy wrote
    nothing, `action` is -1 and the measurements are 0.

    `logp`, `entropy` and `error_norm` are those of the trainer's policy at rollout time, None where
    another engine sampled; then `behaviour` has that engine's log-probabilities. `truncated`: a
    limit cut a turn, or ended the episode.
    """

    episode: Episode
    ids: list[int]
    action: list[int]
    logp: list[float] | None = None
    entropy: list[float] | None = None
    error_norm: list[float] | None = None
    truncated: bool = False
    behaviour: list[float] | None = None


class Completion(NamedTuple):
    """An engine's output after one context.

    `ids` are the sampled tokens, including the one that completes a closing tag or ends the text.
    `logps` are their log-probabilities in nats under the policy that sampled (`behaviour`), of the
    full distribution at temperature 1 whatever the sampling settings. `truncated`: the limit was
    reached.
    """

    ids: list[int]
    logps: list[float]
    truncated: bool


class TokenProtocol:
    """The environment's rules for one policy's tokens."""

    def __init__(self, policy: Policy, sampling: Sampling) -> None:
        self._policy = policy
        self._sampling = sampling
        # Only a token with a ">" in it can complete a closing tag: the rest need no decoding.
        vocabulary = policy.tokenizer.convert_ids_to_tokens(range(len(policy.tokenizer)))
        self._may_close = {i for i, piece in enumerate(vocabulary) if ">" in (piece or "")}

    def begin(self, environment: Environment, question: Question) -> tuple[Episode, list[int]]:
        """The question's episode and the tokens of its prompt. Raises UsageError if the prompt
        leaves no room for a turn, or the chat template refuses it."""
        text = self._prompt(question)
        return environment.begin(question, text), self._encoded(question, text)

    def prompt(self, question: Question) -> list[int]:
        """The tokens of a question's prompt. Raises UsageError like `begin`."""
        return self._encoded(question, self._prompt(question))

    def check(self, questions: Iterable[Question]) -> None:
        """Raise UsageError if the tokenizer cannot end a turn, the prompt of one of the questions
        leaves no room for a turn, or the chat template refuses the prompt. Short prompts are not
        encoded: apart from the few that tokenizers add, no token is shorter than a byte."""
        policy = self._policy
        for tag in CLOSING:
            if tag not in (text := policy.decode(policy.encode(tag))):
                raise UsageError(
                    f"The model's tokenizer cannot write {tag}, which becomes {text!r}: the "
                    "protocol needs a model that can"
                )
        if policy.tokenizer.chat_template and policy.eos_id is None:
            raise UsageError(
                "The model's tokenizer has a chat template and no end-of-turn token (eos_token in "
                "tokenizer_config.json): name the one that the template ends a turn with"
            )
        for question in questions:
            text = self._prompt(question)
            if len(text.encode()) + _TAIL >= self._sampling.sequence_tokens:
                self._encoded(question, text)

    def _encoded(self, question: Question, prompt: str) -> list[int]:
        tokens = self._policy.encode(prompt)
        limit = self._sampling.sequence_tokens
        if len(tokens) >= limit:
            raise UsageError(
                f"The prompt of question {question.index} of {question.data_source} has "
                f"{len(tokens)} tokens, and sequence_tokens={limit} leaves no room for a turn: "
                "raise sequence_tokens or leave the question out"
            )
        return tokens

    def _prompt(self, question: Question) -> str:
        messages = list(question.prompt or ()) or [
            {"role": "user", "content": prompt_text(question.text, self._sampling.instruction)}
        ]
        tokenizer = self._policy.tokenizer
        if not tokenizer.chat_template:
            return "".join(message["content"] for message in messages)
        try:
            return tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise UsageError(
                f"The model's chat template refuses the prompt of question {question.index} of "
                f"{question.data_source} ({error}): use a model that takes these roles"
            ) from None

    def closes(self, turn: Sequence[int], end: int, tags: Sequence[str] = CLOSING) -> bool:
        """Whether token `end - 1` of the turn completes one of `tags`."""
        if turn[end - 1] not in self._may_close:
            return False
        text = self._policy.decode(list(turn[max(0, end - _TAIL) : end]))
        return any(tag in text for tag in tags)

    def end_of_turn(self, ids: Sequence[int]) -> int | None:
        """The number of sampled tokens in the turn, up to the one that completes its closing tag;
        None without one. `turn_end` "tag" takes the first closing tag of either kind. "length"
        takes the first `</search>` if there is any, else the first `</answer>`, as the reference
        code does."""
        kinds = [CLOSING] if self._sampling.turn_end == "tag" else [(tag,) for tag in CLOSING]
        ends = [end for end, token in enumerate(ids, 1) if token in self._may_close]
        return next((end for tags in kinds for end in ends if self.closes(ids, end, tags)), None)

    def respond(
        self,
        environment: Environment,
        rollouts: Sequence[Rollout],
        turns: Sequence[Sequence[int]],
    ) -> list[list[int]]:
        """Let the environment answer turns whose tokens are in the rollouts already; returns the
        tokens of each observation, none where it is over."""
        episodes = [rollout.episode for rollout in rollouts]
        texts = [self._policy.decode(list(turn)) for turn in turns]
        observations = []
        for rollout, observation in zip(
            rollouts, environment.respond(episodes, texts), strict=True
        ):
            tokens = self._fit(observation)
            episode = rollout.episode
            # An observation that no answer could follow only costs tokens.
            no_room = len(rollout.ids) + len(tokens) >= self._sampling.sequence_tokens
            if no_room and not episode.done:
                episode.done = rollout.truncated = True
            fed = [] if episode.done else tokens
            episode.observations[-1] = self._policy.decode(fed)
            observations.append(fed)
        return observations

    def _fit(self, observation: str) -> list[int]:
        """The tokens of an observation, cut to the limit; with `observation_end` "closed" the
        documents are cut and the closing tag stays."""
        limit = self._sampling.observation_tokens
        tokens = self._policy.encode(observation)
        if len(tokens) <= limit:
            return tokens
        end = self._policy.encode(TOOL_END) if observation.endswith(TOOL_END) else []
        if self._sampling.observation_end == "cut" or len(end) > limit:
            end = []
        return tokens[: limit - len(end)] + end
