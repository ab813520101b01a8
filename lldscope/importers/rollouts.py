"""Rollouts, a row each, as trainers dump them: JSON lines, arrays or Parquet.

What a row holds is found by the names of `FIELDS`: a step, the response as text or messages, or its
tokens with a mask and log-probabilities, a reward. Among them

- verl 0.9.1 (`trainer/ppo/v1/trainer_base.py`, `trainer.rollout_data_dir`): `input, output, gts,
  score, step`, and `uid` = "sample_rollout_output"; text and reward alone.
- TRL 1.16 (`trainer/grpo_trainer.py`, `log_completions`): `step, prompt, completion, advantage` and
  a column per reward function.
- NeMo-RL 7ea279a (`algorithms/grpo.py`): `train_data_step<N>.jsonl`, batches of one with the
  log-probabilities of the engine and of the policy before the update.
- miniVERL 0.16 (`trajectory/io.py`): `trajectories.jsonl`, with the engine's log-probabilities of
  the sampled tokens and the version of the policy that sampled them, which counts its updates.

Where the engine's and the trainer's log-probabilities are both there, their difference is
`engine_gap`. Δ needs the trainer's own from before and after a step's updates.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..recording.batch import Batch, Scores, padded, runs_of
from ..recording.columns import tables
from ..recording.transcripts import (
    Transcript,
    Turn,
    exact_match,
    golden_answers,
    golden_of,
    has_tags,
    parse,
    question_of,
    short_hash,
)
from .reading import as_step, bare_name, listing, natural_key, number
from .rows import Candidate, rows_of
from .source import Findings, ImportRequest, Rows

BATCH = 2000  # rollouts in a piece, at most …
MAX_TOKENS = 4_000_000  # … and of a piece's tokens, the longest rollout's for each …
MAX_CHARACTERS = 16 << 20  # … and about so much of their text
INCOMPLETE = 0.5  # of the usual number of rollouts of a step
MEASURED = ("behaviour", "old", "post", "reference", "entropy")
_FILE_STEP = re.compile(r"(?<!\d)(\d{1,9})\D*$")  # 12.jsonl, train_data_step12.jsonl

# Ours → what others call it, the first that is there; a dot leads into an object of the row.
FIELDS: dict[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "iteration", "policy_version"),
    "prompt": ("prompt", "question", "query", "input"),
    "response": ("response", "completion", "output", "generation"),
    "messages": ("content", "messages", "spans"),
    "reward": ("reward", "score", "rewards", "verification.reward",
               "metadata.task_reward.raw_reward"),
    "group": ("group_id", "group", "prompt_group_id", "prompt_id", "uid"),
    "correct": ("correct", "acc", "verification.solved"),
    "advantage": ("advantage", "advantages", "metadata.rl_advantages"),
    "data_source": ("data_source", "metadata.data_source"),
    "policy_version": ("policy_version", "metadata.actor_rollout_policy_version"),
    "tokens": ("token_ids", "response_ids"),
    "mask": ("token_loss_mask", "loss_mask", "response_mask", "model_generated_mask"),
    "behaviour": ("generation_logprobs", "behaviour_logprobs", "behavior_logprobs",
                  "rollout_log_probs", "metadata.actor_rollout_log_probs"),
    "old": ("prev_logprobs", "old_logprobs", "old_log_probs"),
    "post": ("post_logprobs", "post_log_probs"),
    "reference": ("reference_logprobs", "ref_log_probs", "metadata.reference_log_probs"),
    "entropy": ("entropies",),
}
NAMES = tuple(FIELDS)
_KNOWN = {name for names in FIELDS.values() for name in names}


class Rollouts:
    """Buffers rollouts of a log for `recording.columns`, one piece of a step at a time."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self._step = -1
        self._ids: Counter[int] = Counter()  # step → rollouts so far
        self._groups: dict[int, dict[str, int]] = {}  # step → group → its number
        self._tags = False  # once seen, a rollout without them is one that does not follow them
        self._characters = self._longest = 0  # of the piece
        self._rows: list[dict[str, Any]] = []

    def parse(self, response: str | None, prompt: str = "") -> Transcript | None:
        """The actions of a text; None without a text, or until the first text with tags."""
        self._tags = self._tags or has_tags(response or "") or has_tags(prompt)
        return parse(response) if self._tags and response is not None else None

    def add(self, step: int, group: str, row: dict[str, Any]) -> Iterator[Rows]:
        """Add one rollout; yields the rows of a complete piece.

        row: columns of `responses`; turns; action (T,): number of each token's action, −1 outside
        actions, None if the log has only texts; and one number per token for each measured quantity
        of MEASURED.
        """
        tokens = 0 if row["action"] is None else len(row["action"])
        longest = max(self._longest, tokens)
        if (
            step != self._step
            or len(self._rows) >= BATCH
            or self._characters >= MAX_CHARACTERS
            or longest * (len(self._rows) + 1) > MAX_TOKENS
            or (self._rows[0]["action"] is None) != (row["action"] is None)
        ):
            yield from self.flush()
            longest = tokens
        self._step, self._longest = step, longest
        self._characters += len(row["text"] or "")
        groups = self._groups.setdefault(step, {})
        number = groups.setdefault(group, len(groups))
        self._rows.append(row | {"id": self._ids[step], "group": number})
        self._ids[step] += 1

    def flush(self) -> Iterator[Rows]:
        rows, self._rows, self._characters, self._longest = self._rows, [], 0, 0
        if rows:
            yield Rows(self._step, tables(self._batch(rows)))

    def finish(self) -> Iterator[Rows]:
        """The last piece, unless its step has far fewer rollouts than the others: then it is
        incomplete."""
        others = [n for step, n in self._ids.items() if step != self._step]
        n = self._ids[self._step]
        if others and n == len(self._rows) < INCOMPLETE * float(np.median(others)):
            self.findings.skip("rollouts of the last step, which is not complete", n)
            self._rows = []
        yield from self.flush()

    def _batch(self, rows: list[dict[str, Any]]) -> Batch:
        column = {name: [row.get(name) for row in rows] for name in rows[0].keys() | set(MEASURED)}
        scores: dict[str, Any] = {}
        action = None
        if rows[0]["action"] is not None:  # of a log of tokens
            action = padded([row["action"] + 1 for row in rows]) - 1  # (N, T)
            for name in MEASURED:
                there = np.array([values is not None for values in column[name]])
                if there.any():
                    table = np.full(action.shape, np.nan)
                    for of_row, values in zip(table, column[name], strict=True):
                        of_row[: len(values or ())] = values or ()
                    scores[name] = table if name == "behaviour" else Scores(table, there)
        unknown = [v is None for v in column["advantage"]]
        versions = column["policy_version"]
        return Batch(
            step=self._step,
            mask=None if action is None else action >= 0,
            action=action,
            prompt_ids=column["prompt_hash"],
            completion_ids=None,
            rewards=np.array(column["reward"], float),
            correct=column["correct"],
            group_ids=column["group"],
            response_ids=column["id"],
            advantages=np.ma.array(np.array(column["advantage"], float), mask=unknown),
            turns=column["turns"],
            protocol="tags" if self._tags else None,
            data_source=column["data_source"],
            policy_version=None if None in versions else versions,
            texts=column["text"],
            questions=column["question"],
            golden=column["golden"],
            reward_parts=column["reward_parts"],
            **scores,
        )


def is_rollout(row: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
    """Whether a row is a rollout: it has a response, or tokens with a mask, and the other fields.
    columns: our names → the given names."""
    response, messages = _of(row, "response", columns), _of(row, "messages", columns)
    if isinstance(_of(row, "tokens", columns), list) and _of(row, "mask", columns) is not None:
        return True
    if not isinstance(response, str | list) and not isinstance(messages, list):
        return False
    return any(_of(row, name, columns) is not None for name in ("prompt", "reward", "advantage"))


def _of(row: Mapping[str, Any], ours: str, columns: Mapping[str, str]) -> Any:
    """A part of a rollout, under the given name or a usual one."""
    for name in (columns[ours],) if ours in columns else FIELDS[ours]:
        value: Any = row
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


class RolloutRows:
    name = "rollouts"
    description = "rollouts, a row each: verl's and TRL's dumps, NeMo-RL, miniVERL, your own"

    def looks_like(self, file: Candidate) -> bool:
        return bool(file.rows) and is_rollout(file.rows[0], file.columns)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        _refuse_folders(paths)
        rollouts = Rollouts(findings)
        for path in sorted(paths, key=natural_key):
            named = _FILE_STEP.search(Path(bare_name(path)).stem)
            for row in rows_of(path, findings):
                findings.all_names.update(row)
                yield from _rollout(row, as_step(named[1]) if named else None, rollouts)
        yield from rollouts.finish()


def _refuse_folders(paths: Sequence[Path]) -> None:
    """Raises UsageError for dumps in several folders: training and validation look alike."""
    folders = sorted({path.parent.absolute() for path in paths}, key=natural_key)
    if len(folders) > 1:
        where = Path(os.path.commonpath(folders))
        names = [str(folder.relative_to(where)) for folder in folders]
        raise UsageError(
            f"{where} holds rollouts in {len(folders)} folders: {listing(names)}. Those of "
            "training and of validation look alike: name only the folder of training, which is "
            "verl's trainer.rollout_data_dir."
        )


def _rollout(row: dict[str, Any], named: int | None, rollouts: Rollouts) -> Iterator[Rows]:
    """Add one row; `named` is the step in the file's name, for rows without a step."""
    findings = rollouts.findings
    request = findings.request
    part = {name: _of(row, name, request.columns) for name in FIELDS} | {"golden": golden_of(row)}
    step = as_step(part["step"])
    step = named if step is None else step
    prompt, response, text = _texts(part)
    mask = _mask(part)
    if step is None or (response is None and not mask):
        findings.skip("rollouts without a step or a response")
        return
    spans = runs_of(mask) if mask else []
    if mask and not spans:
        findings.skip("rollouts in which the policy wrote nothing")
        return
    prompt_key = prompt or ",".join(map(str, (part["tokens"] or ())[: spans[0][0] if spans else 0]))
    group = prompt_key if part["group"] is None else str(part["group"])
    if group == row.get("uid"):
        group = group.rsplit("_", 2)[0]  # verl's sample_rollout_output
    reward = number(single(part["reward"]))
    extras = {n: v for n, v in row.items() if n not in _KNOWN}
    if "gts" not in row:  # verl: numbers that the reward function returned beside the score
        extras = {n: v for n, v in extras.items() if isinstance(v, float)}
    parts = finite(extras) if "gts" in row or reward is None else {}
    if reward is None and "advantage" in row:  # TRL: a column of decimal numbers per function
        reward = sum(parts.values()) if parts else None
        findings.note(
            "The reward of a TRL completion is the sum of its columns of decimal numbers: the "
            "reward functions. Their weights are not in the file."
        )
    transcript = rollouts.parse(response, prompt)
    turns = transcript.turns if transcript is not None else None
    action, measurements = None, dict[str, Any]()
    if spans:
        first, last = spans[0][0], spans[-1][1]
        action = np.full(last - first, -1)  # (T,)
        for i, (start, end) in enumerate(spans):
            action[start - first : end - first] = i
        turns = turns if turns is not None and len(turns) == len(spans) else None
        for name in MEASURED:
            values = _per_token(part[name], mask, name, findings)
            measurements[name] = values and values[first:last]
    elif turns is None:
        turns = (Turn("text"),)
    columns = {
        "prompt_hash": short_hash(prompt_key),
        "data_source": part["data_source"] if isinstance(part["data_source"], str) else None,
        "policy_version": as_step(part["policy_version"]),
        "reward": reward,
        "advantage": _first_number(part["advantage"], mask),
        "correct": _correct(findings, reward, transcript, part),
        "text": text or None,
        "question": question_of(part["prompt"]),
        "golden": golden_answers(part["golden"]),
        "reward_parts": parts or None,
        "turns": turns,
        "action": action,
    }
    yield from rollouts.add(step, group, columns | measurements)


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the values of a log."""
    numbers = {k: v for k, v in values.items() if isinstance(v, int | float)}
    return {str(k): float(v) for k, v in numbers.items() if math.isfinite(v)}


def single(value: Any) -> Any:
    """The element of a list of one, as in NeMo-RL's slices of batches."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def _mask(part: Mapping[str, Any]) -> list[Any]:
    """The tokens that the policy wrote. Without a mask, a row's log-probabilities are those of the
    response."""
    mask = single(part["mask"])
    if isinstance(mask, list):
        ids = single(part["tokens"])
        return mask if not isinstance(ids, list) or len(ids) == len(mask) else []
    scored = (part[name] for name in ("behaviour", "old") if isinstance(part[name], list))
    return [1] * len(next(scored, ()))


def _per_token(
    value: Any, mask: Sequence[Any], name: str, findings: Findings
) -> list[float] | None:
    """One number per token, from a list over all tokens or over the policy's own; null becomes NaN.
    None for other values."""
    value = single(value)
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, list):
        return None
    numbers = [math.nan if v is None else number(v) for v in value]
    if None in numbers:
        return None
    if len(numbers) == sum(map(bool, mask)) < len(mask):
        of_policy = iter(numbers)
        numbers = [next(of_policy) if m else 0.0 for m in mask]
    if len(numbers) != len(mask):
        return None
    if name == "old" and not any(numbers):
        findings.note("prev_logprobs are all 0: they were not computed (force_on_policy_ratio).")
        return None
    return numbers  # type: ignore[return-value]


def _first_number(value: Any, mask: Sequence[Any]) -> float | None:
    """The advantage: a number, or the number of the policy's first token."""
    value = single(value)
    if isinstance(value, list):
        at = next((i for i, m in enumerate(mask) if m), 0) if len(value) == len(mask) else 0
        value = value[at] if value else None
    return number(value)


def _correct(
    findings: Findings, reward: float | None, transcript: Transcript | None, part: Mapping[str, Any]
) -> bool | None:
    """Whether a rollout is correct by the import's rule; None if unknown."""
    request = findings.request
    if request.exact_match:
        if part["golden"] is None:
            findings.note("No golden answers are in this log: nothing is known to be correct.")
            return None
        answer = transcript.answer if transcript else None
        return exact_match(answer, golden_answers(part["golden"]))
    verdict = part["correct"]
    verdict = float(verdict) if isinstance(verdict, bool) else number(verdict)
    if verdict in (0.0, 1.0):
        return verdict == 1.0
    return None if reward is None or reward != reward else reward >= request.correct_from


def correct_rule(request: ImportRequest) -> str:
    """A description of the rule for `correct`, for run.json."""
    if request.exact_match:
        return "exact match of the last <answer> with a golden answer of the log"
    return (
        f"the log's own verdict (acc) where it has one, otherwise reward ≥ {request.correct_from:g}"
    )


def _texts(part: Mapping[str, Any]) -> tuple[str, str | None, str]:
    """Prompt, response (None if not separate), and the whole text with tool text in tags."""
    if part["response"] is not None:
        prompt, response = as_text(part["prompt"]), as_text(part["response"])
        return prompt, response, prompt + response
    content, prompt = single(part["messages"]), as_text(part["prompt"])
    if not isinstance(content, list):
        return prompt, None, content if isinstance(content, str) else prompt
    messages = [_message(one) for one in content]
    n_actions = len(runs_of(_mask(part)))
    # Texts alone: the first is the prompt, then actions and tool texts in turn.
    if not any(role for role, _ in messages) and len(messages) // 2 == n_actions:
        messages = [(("user", "assistant")[i % 2], text) for i, (_, text) in enumerate(messages)]
    text = "\n".join(text for _, text in messages)
    first = next((i for i, (role, _) in enumerate(messages) if role == "assistant"), None)
    if first is None:
        return prompt, None, text
    tagged = any(has_tags(text) for role, text in messages if role == "assistant")
    response = "\n".join(
        f"<tool_response>{text}</tool_response>"
        if tagged and role != "assistant" and not has_tags(text) else text
        for role, text in messages[first:]
    )
    return "\n".join(text for _, text in messages[:first]), response, text


def _message(part: Any) -> tuple[str | None, str]:
    """Role and text of a message, or of a span of miniVERL."""
    if not isinstance(part, dict):
        return None, as_text(part)
    role = part.get("role") or part.get("span_type")
    role = "assistant" if isinstance(role, str) and role.startswith("assistant") else role
    return (role if isinstance(role, str) else None), as_text(part.get("content", part.get("text")))


def as_text(value: Any) -> str:
    """A prompt or completion as text: a string, or the messages of a conversation."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return ""
    parts = []
    for message in value:
        content = message.get("content") if isinstance(message, dict) else message
        content = content if isinstance(content, str) else ""
        tool = isinstance(message, dict) and message.get("role") == "tool"
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        calls = [calls] if isinstance(calls, str) else calls  # some are JSON
        calls = calls if isinstance(calls, list) else ()
        content += "".join(f"<tool_call>{call}</tool_call>" for call in calls)
        parts.append(f"<tool_response>{content}</tool_response>" if tool else content)
    return "\n".join(parts)
