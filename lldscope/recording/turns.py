"""What the actions of a rollout were: from TRL's list of messages, or from tags in the text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .episodes import has_tags, parse


@dataclass(frozen=True)
class Turn:
    """One action: what kind it is, whether the tool worked, and a hash of what it returned."""

    kind: str
    tool_ok: bool | None = None
    docs_hash: str | None = None


def tagged_turns(said: Sequence[str], fed: Sequence[str], *, truncated: bool) -> list[Turn]:
    """The actions of one rollout by the tags of Search-R1 or of Hermes-style tool calls.

    said: the text of each action; fed: what the policy was fed after it, "" if nothing. Without
    tags an action that was answered is a `search`, and one that ended by itself after others were
    is an `answer`.
    """
    if not any(has_tags(s) for s in said):
        kinds = ["search" if f else "text" for f in fed]
        if "search" in kinds[:-1] and kinds[-1] == "text" and not truncated:
            kinds[-1] = "answer"
        return [Turn(kind) for kind in kinds]
    found = []
    for s, f in zip(said, fed, strict=True):
        first = next(iter(parse(s + f).turns), None)
        if first is None or (first.kind == "text" and f):
            found.append(Turn("invalid" if f else "text"))
        else:
            found.append(Turn(first.kind, first.tool_ok, first.docs_hash))
    return found


def message_turns(own: np.ndarray, completion: Any, *, truncated: bool) -> list[Turn]:
    """The actions of one rollout with tools, maximal runs of True in `own` (completion tokens,).

    An action that was answered with tool text is a `search`, whatever the tool; one that ended by
    itself is an `answer`; everything else is `text`. `completion`: messages, or a string, as TRL
    has them.
    """
    before = np.pad(own, (1, 0))[:-1]
    n = int((own & ~before).sum())
    answers = _tool_answers(completion)
    if len(answers) != n:  # an environment that tells no messages, or a turn that was cut off
        answers = [[]] * n
    found = [Turn("search", _worked(a), _hash(a)) for a in answers]
    if n and own[-1]:  # the last action had no answer
        done = not truncated and not _calls_unanswered(completion)
        found[-1] = Turn("answer" if done else "text")
    return found


def _tool_answers(completion: Any) -> list[list[str]]:
    """For each message of the assistant, what the tools said after it."""
    answers: list[list[str]] = []
    for message in completion if isinstance(completion, list) else []:
        if message.get("role") == "tool" and answers:
            answers[-1].append(str(message.get("content")))
        elif message.get("role") == "assistant":
            answers.append([])
    return answers


def _calls_unanswered(completion: Any) -> bool:
    """The last message calls a tool that nobody called."""
    last = completion[-1] if isinstance(completion, list) and completion else {}
    return bool(last.get("tool_calls"))


def _worked(answers: Sequence[str]) -> bool | None:
    """TRL answers for a tool that failed with {'error': …}; None if nothing is known."""
    return not any(a.startswith("{'error':") for a in answers) if answers else None


def _hash(answers: Sequence[str]) -> str | None:
    """The same for the same set of answers; None if there were none."""
    if not answers:
        return None
    return hashlib.blake2s(repr(sorted(set(answers))).encode(), digest_size=4).hexdigest()
