"""Logs with the log-probability of every token: actions and likelihood levels, but no Δ.

NeMo-RL (7ea279a, `algorithms/grpo.py`) writes `train_data_step<N>.jsonl` with the log-probs of the
engine and of the policy before the update; the difference of the two mixes staleness with the
mismatch of the engines, so it is shown as `engine_gap` and not as Δ. Its `content` is a text or the
list of what was said in turn. Actions are the maximal runs of the loss mask.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..recording.batch import runs_of
from ..recording.episodes import has_tags, short_hash
from .reading import as_step, bare_name, natural_key, number, objects
from .rollouts import Rollouts, as_text, verdict
from .source import Findings, Rows

_NEMO_STEP = re.compile(r"train_data_step([0-9]{1,10})\.jsonl")

Spans = list[tuple[int, int]]


def sequence(
    rollouts: Rollouts, step: int, group: Any, spans: Spans,
    of_tokens: dict[str, Sequence[float] | None], *,
    response: str | None = None, golden: Any = None, reward: float | None = None, **columns: Any,
) -> Iterator[Rows]:
    """Add one sequence. `of_tokens`: field of a `Batch` → its value at each token, None if unknown.
    `response` is its text, tool text included, where it can be separated from the prompt: actions
    have a kind where the text holds as many of them as the mask."""
    episode, request = rollouts.parse(response), rollouts.findings.request
    if "correct" not in columns:
        if request.exact_match and golden is None:
            rollouts.findings.note(
                "No golden answers are in this log: nothing is known to be correct."
            )
        columns["correct"] = verdict(request, reward, episode.answer if episode else None, golden)
    first, last = spans[0][0], spans[-1][1]
    action = np.full(last - first, -1)  # (T,)
    for i, (start, end) in enumerate(spans):
        action[start - first : end - first] = i
    same = episode is not None and len(episode.turns) == len(spans)
    turns = episode.turns if episode and same else None
    measurements = {name: v and v[first:last] for name, v in of_tokens.items()}
    return rollouts.add(step, group, turns, {"reward": reward, **columns}, action, **measurements)


def floats(value: Any, n: int) -> list[float] | None:
    """A list of `n` numbers, null as NaN; None for anything else."""
    value = value.tolist() if hasattr(value, "tolist") else value  # a tensor
    if not isinstance(value, list) or len(value) != n:
        return None
    values = [float("nan") if v is None else number(v) for v in value]
    return None if None in values else values  # type: ignore[return-value]


class NemoTrainData:
    name = "nemo-rl"
    description = "NeMo-RL's train_data_step<N>.jsonl"

    def looks_like(self, path: Path, head: bytes) -> bool:
        return _NEMO_STEP.fullmatch(bare_name(path)) is not None

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        rollouts = Rollouts(findings)
        for path in sorted(paths, key=natural_key):
            match = _NEMO_STEP.fullmatch(bare_name(path))
            step = as_step(match[1]) if match else None
            if step is None:
                findings.skip("files whose name holds no step")
                continue
            for row in objects(path, findings):
                yield from self._sequence(step, row, rollouts)
        yield from rollouts.finish()

    def _sequence(self, step: int, row: dict[str, Any], rollouts: Rollouts) -> Iterator[Rows]:
        """One line. Values are those of a batch of one, so each is wrapped in a list."""
        ids, trained = _single(row.get("token_ids")), _single(row.get("token_loss_mask"))
        mask: list[Any] = trained if isinstance(trained, list) else []
        spans = runs_of(mask)
        if not isinstance(ids, list) or not spans or len(ids) != len(mask):
            rollouts.findings.skip("sequences without token ids and a loss mask")
            return
        n = len(ids)
        old = floats(_single(row.get("prev_logprobs")), n)
        if old is not None and not any(old):
            old = None
            rollouts.findings.note(
                "prev_logprobs are all 0: they were not computed (force_on_policy_ratio)."
            )
        reward = number(_single(row.get("rewards")))
        advantage = _single(row.get("advantages"))
        if isinstance(advantage, list):
            advantage = advantage[spans[0][0]] if len(advantage) == n else None
        prompt = short_hash(",".join(map(str, ids[: spans[0][0]])))
        text, response = _texts(_single(row.get("content")), len(spans))
        yield from sequence(
            rollouts, step, prompt, spans,
            {
                "behaviour": floats(_single(row.get("generation_logprobs")), n),
                "old": old,
            },
            prompt_hash=prompt, reward=reward, advantage=number(advantage),
            text=text, response=response,
        )


def _texts(content: Any, actions: int) -> tuple[str | None, str | None]:
    """The text of a sequence, and that of the response where it can be told from the prompt.

    `content` is a text, or a list of what was said in turn: messages with roles, or texts alone.
    Of texts the first is then the prompt, and every second one after it an action, if there are as
    many as the mask has.
    """
    if not isinstance(content, list):
        return (content if isinstance(content, str) else None), None
    messages = [_message(part) for part in content]
    if not any(role for role, _ in messages) and len(messages) // 2 == actions:
        messages = [(("user", "assistant")[i % 2], text) for i, (_, text) in enumerate(messages)]
    answers = [text for role, text in messages if role == "assistant"]
    tagged = any(map(has_tags, answers))
    parts = [
        f"<tool_response>{text}</tool_response>"
        if tagged and i > 0 and role != "assistant" and not has_tags(text)
        else text
        for i, (role, text) in enumerate(messages)
    ]
    first = next((i for i, (role, _) in enumerate(messages) if role == "assistant"), None)
    response = None if first is None else "\n".join(parts[first:])
    return "\n".join(text for _, text in messages), response


def _message(part: Any) -> tuple[str | None, str]:
    role = part.get("role") if isinstance(part, dict) else None
    text = part.get("content") if isinstance(part, dict) else part
    return (role if isinstance(role, str) else None), as_text(text)


def _single(value: Any) -> Any:
    """What is in a list of one."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value
