"""The actions of a rollout that a trainer sampled: from its messages, or from tags in its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .episodes import Turn, documents_hash, has_tags, parse


def tagged_turns(written: Sequence[str], fed: Sequence[str], *, truncated: bool) -> list[Turn]:
    """The actions of one rollout by the tags of Search-R1 or of Hermes-style tool calls.

    written: the text of each action; fed: what the policy was fed after it, "" if nothing. Without
    tags an action that was answered is a `search`, and the last one is an `answer` if it ended by
    itself after a search.
    """
    if not any(has_tags(text) for text in written):
        kinds = ["search" if f else "text" for f in fed]
        if "search" in kinds[:-1] and kinds[-1] == "text" and not truncated:
            kinds[-1] = "answer"
        return [Turn(kind) for kind in kinds]
    turns = []
    for text, f in zip(written, fed, strict=True):
        first = next(iter(parse(text + f).turns), Turn("text"))
        turns.append(Turn("invalid") if first.kind == "text" and f else first)
    return turns


def message_turns(own: np.ndarray, completion: Any, *, truncated: bool) -> list[Turn]:
    """The actions of one rollout with tools, maximal runs of True in `own` (completion tokens,).

    An action that was answered with tool text is a `search`, whatever the tool; one that ended by
    itself is an `answer`; everything else is `text`. `completion`: messages, or a string, as TRL
    has them.
    """
    n = int((own & ~np.pad(own, (1, 0))[:-1]).sum())
    answers = _tool_answers(completion)
    if len(answers) != n:  # an environment without messages, or a turn that was cut off
        answers = [[]] * n
    turns = [
        Turn("search", _tool_ok(a), documents_hash(a)) if a else Turn("search") for a in answers
    ]
    if n and own[-1]:  # the last action was not answered
        done = not truncated and not _calls_unanswered(completion)
        turns[-1] = Turn("answer" if done else "text")
    return turns


def _tool_answers(completion: Any) -> list[list[str]]:
    """What the tools returned after each message of the assistant."""
    answers: list[list[str]] = []
    for message in completion if isinstance(completion, list) else []:
        if message.get("role") == "tool" and answers:
            answers[-1].append(str(message.get("content")))
        elif message.get("role") == "assistant":
            answers.append([])
    return answers


def _calls_unanswered(completion: Any) -> bool:
    """The last message calls a tool, and the call was not made."""
    last = completion[-1] if isinstance(completion, list) and completion else {}
    return bool(last.get("tool_calls"))


def _tool_ok(answers: Sequence[str]) -> bool:
    """TRL answers for a tool that failed with {'error': …}."""
    return not any(a.startswith("{'error':") for a in answers)
