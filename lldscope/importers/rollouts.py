"""Rollouts as text: verl's `<step>.jsonl` dumps and TRL's `completions_<step>.parquet`.

They hold the text and the reward of every rollout, and no log-probabilities.

verl 0.9.1 (`trainer/ppo/v1/trainer_base.py`, `trainer.rollout_data_dir`): `input, output, gts,
score, step`, extras of the reward function, and `uid` = "sample_rollout_output"; without it a group
is what shares its `input`. TRL 1.16 (`trainer/grpo_trainer.py`, `log_completions`): `step, prompt,
completion, advantage`, a column per reward function, and what `log_extra` was given.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..recording.batch import Batch, Scores, padded
from ..recording.columns import tables
from ..recording.episodes import (
    Episode,
    Turn,
    exact_match,
    golden_answers,
    golden_of,
    has_tags,
    parse,
    question_of,
    short_hash,
)
from .reading import as_step, first_keys, first_object, natural_key, number, objects
from .source import Findings, ImportRequest, Rows

BATCH = 2000  # rollouts in a piece, at most …
MAX_TOKENS = 4_000_000  # … and of a piece's tokens, the longest rollout's for each …
MAX_CHARACTERS = 16 << 20  # … and about so much of their text
INCOMPLETE = 0.5  # of the usual number of rollouts of a step
MEASURED = ("old", "behaviour", "reference", "entropy")
_SHOWN = 20  # folders in a message
_NO_REWARD = {"step", "prompt", "completion", "advantage"}


class Rollouts:
    """Rollouts of a log on their way to `recording.columns`, a piece of a step at a time."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self._step = -1
        self._ids: dict[int, int] = {}  # step → rollouts so far
        self._groups: dict[int, dict[Any, int]] = {}  # step → those of it, numbered as they come
        self._tags = False  # once seen, a rollout without them is one that does not follow them
        self._characters = self._longest = 0  # of the piece
        self._rows: list[dict[str, Any]] = []

    def parse(self, response: str | None, prompt: str = "") -> Episode | None:
        """The actions in a text; None without a text, or while no text has had tags."""
        self._tags = self._tags or has_tags(response or "") or has_tags(prompt)
        return parse(response) if self._tags and response is not None else None

    def add(
        self, step: int, group: Any, turns: Sequence[Turn] | None, row: Mapping[str, Any],
        action: np.ndarray | None = None, **measurements: Sequence[float] | None,
    ) -> Iterator[Rows]:
        """One rollout; yields the rows of a piece that is complete. A group of None is not known.

        row: columns of `responses`. action (T,): number of each token's action, −1 off the actions;
        None where the log has texts alone. measured: fields of a `Batch`, a number per token,
        None where they are not known.
        """
        tokens = 0 if action is None else len(action)
        longest = max(self._longest, tokens)
        full = (
            len(self._rows) >= BATCH
            or self._characters >= MAX_CHARACTERS
            or longest * (len(self._rows) + 1) > MAX_TOKENS
        )
        if step != self._step or full:
            yield from self.flush()
            longest = tokens
        self._step, self._longest = step, longest
        self._characters += len(row.get("text") or "")
        self._ids[step] = self._ids.get(step, -1) + 1
        if group is not None:
            numbers = self._groups.setdefault(step, {})
            group = numbers.setdefault(group, len(numbers))
        self._rows.append(
            {**row, "id": self._ids[step], "group": group, "turns": turns, "action": action}
            | measurements
        )

    def flush(self) -> Iterator[Rows]:
        rows, self._rows, self._characters, self._longest = self._rows, [], 0, 0
        if rows:
            for table, columns in tables(self._batch(rows)).items():
                yield Rows(table, _lists(columns))

    def finish(self) -> Iterator[Rows]:
        """The last piece, without a step that has far fewer rollouts than the others: the trainer
        was writing it, or ended in it."""
        sizes = [n + 1 for step, n in self._ids.items() if step != self._step]
        n = len(self._rows)
        if sizes and n == self._ids[self._step] + 1 and n < INCOMPLETE * float(np.median(sizes)):
            self.findings.skip("rollouts of the last step, which is not complete", n)
            self._rows = []
        yield from self.flush()

    def _batch(self, rows: list[dict[str, Any]]) -> Batch:
        def column(name: str) -> list[Any]:
            return [row.get(name) for row in rows]

        def masked_column(name: str, kind: type) -> np.ma.MaskedArray:
            values = column(name)
            filled = [0 if v is None else v for v in values]
            return np.ma.array(filled, kind, mask=[v is None for v in values])

        action = None
        if rows[0]["action"] is not None:  # of a log of tokens
            action = padded([row["action"] + 1 for row in rows]) - 1  # (N, T)
        width = 0 if action is None else action.shape[1]
        scores: dict[str, Any] = {}
        for name in () if action is None else MEASURED:
            there = np.array([row.get(name) is not None for row in rows])
            if there.any():
                values = np.full((len(rows), width), np.nan)
                for of_row, row in zip(values, rows, strict=True):
                    numbers = row.get(name) or ()
                    of_row[: len(numbers)] = numbers
                scores[name] = values if name == "behaviour" else Scores(values, there)
        return Batch(
            step=self._step,
            mask=None if action is None else action >= 0,
            action=action,
            prompt_ids=column("prompt_hash"),
            completion_ids=None,
            rewards=[math.nan if v is None else v for v in column("reward")],
            correct=column("correct"),
            group_ids=masked_column("group", int),
            response_ids=column("id"),
            advantages=masked_column("advantage", float),
            turns=column("turns"),
            protocol="tags" if self._tags else None,
            truncated=column("truncated"),
            data_source=column("data_source"),
            texts=column("text"),
            questions=column("question"),
            golden=column("golden"),
            reward_parts=column("reward_parts"),
            **scores,
        )


def _lists(columns: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Columns as lists of one length, without those of NULL alone."""
    lists = {n: v.tolist() if hasattr(v, "tolist") else v for n, v in columns.items()}
    lists = {n: v for n, v in lists.items() if v is not None}
    length = max((len(v) for v in lists.values() if isinstance(v, list)), default=1)
    return {n: v if isinstance(v, list) else [v] * length for n, v in lists.items()}


def rollout(
    rollouts: Rollouts, step: int, group: str, prompt: Any, output: str, row: Mapping[str, Any],
    **columns: Any,
) -> Iterator[Rows]:
    """Add one rollout of texts; `row` may hold golden answers and a verdict. `prompt`: a text or
    the messages of a conversation."""
    question, prompt = question_of(prompt), as_text(prompt)
    episode = rollouts.parse(output, prompt)
    answer = episode.answer if episode else None
    response = {
        "prompt_hash": short_hash(prompt),
        "data_source": _text(row.get("data_source")),
        "correct": _correct(rollouts.findings.request, columns["reward"], answer, row),
        "text": prompt + output,
        "question": question,
        "golden": golden_answers(golden_of(row)),
    }
    turns = episode.turns if episode else (Turn("text"),)
    return rollouts.add(step, group, turns, response | columns)


def _correct(
    request: ImportRequest, reward: Any, answer: str | None, row: Mapping[str, Any]
) -> bool | None:
    accuracy = row.get("acc")
    accuracy = float(accuracy) if isinstance(accuracy, bool) else number(accuracy)
    if not request.exact_match and accuracy in (0.0, 1.0):
        return accuracy == 1.0
    return verdict(request, reward, answer, golden_of(row))


def verdict(
    request: ImportRequest, reward: float | None, answer: str | None, golden: Any
) -> bool | None:
    """Whether a rollout is correct, by the rule of the import; None if that cannot be known."""
    if request.exact_match:
        return None if golden is None else exact_match(answer, golden_answers(golden))
    return None if reward is None or reward != reward else reward >= request.correct_from


def correct_rule(request: ImportRequest) -> str:
    """A description of the rule for `correct`, for run.json."""
    if request.exact_match:
        return "exact match of the last <answer> with a golden answer of the log"
    return (
        f"the log's own verdict (acc) where it has one, otherwise reward ≥ {request.correct_from:g}"
    )


class VerlRollouts:
    name = "verl-rollouts"
    description = "verl's rollout dumps (rollout_data_dir)"

    def looks_like(self, path: Path, head: bytes) -> bool:
        if first_object(head) is not None:
            return {"input", "output", "score"} <= first_keys(head)
        # The first rollout is longer than what can be seen of it.
        return head.lstrip().startswith(b'{"input":') or {"input", "output"} <= first_keys(head)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        _refuse_folders(paths)
        rollouts = Rollouts(findings)
        for path in sorted(paths, key=natural_key):
            for row in objects(path, findings):
                step, prompt, output = as_step(row.get("step")), row.get("input"), row.get("output")
                if step is None or not isinstance(prompt, str) or not isinstance(output, str):
                    findings.skip("rollouts without a step, input or output")
                    continue
                uid = row.get("uid")
                group = uid.rsplit("_", 2)[0] if isinstance(uid, str) else prompt
                reward = number(row.get("score"))
                # what the reward function returned beside the score
                extras = {k: v for k, v in row.items() if k not in ("step", "score", "acc")}
                yield from rollout(
                    rollouts, step, group, prompt, output, row,
                    reward=reward, reward_parts=finite(extras),
                )
        yield from rollouts.finish()


def _refuse_folders(paths: Sequence[Path]) -> None:
    """Raises UsageError for dumps of several folders: training and validation look alike."""
    folders = sorted({path.parent.absolute() for path in paths}, key=natural_key)
    if len(folders) > 1:
        where = Path(os.path.commonpath(folders))
        names = [str(folder.relative_to(where)) for folder in folders]
        listed = ", ".join([*names[:_SHOWN], "…"] if len(names) > _SHOWN else names)
        raise UsageError(
            f"{where} holds verl's rollouts in {len(folders)} folders: {listed}. Those of training "
            "and of validation look alike: name only the folder of training, which is "
            "trainer.rollout_data_dir."
        )


class TrlCompletions:
    name = "trl-completions"
    description = "TRL's completions (log_completions)"

    def looks_like(self, path: Path, head: bytes) -> bool:
        return path.name.startswith("completions") and head.startswith(b"PAR1")

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        from .parquet import parquet_rows

        rollouts = Rollouts(findings)
        for path in sorted(paths, key=natural_key):
            for row in parquet_rows(path, findings):
                yield from self._rollout(row, rollouts)
        yield from rollouts.finish()
        findings.note(
            "The reward of a TRL completion is the sum of its columns of decimal numbers: the "
            "reward functions. Their weights are not in the file."
        )

    def _rollout(self, row: dict[str, Any], rollouts: Rollouts) -> Iterator[Rows]:
        step = as_step(row.get("step"))
        if step is None or row.get("completion") is None:
            rollouts.findings.skip("completions without a step or text")
            return
        prompt = row.get("prompt")
        parts = {n: v for n, v in row.items() if n not in _NO_REWARD and isinstance(v, float)}
        yield from rollout(
            rollouts, step, as_text(prompt), prompt, as_text(row["completion"]), row,
            reward=sum(parts.values()) if parts else None, reward_parts=finite(parts),
            advantage=number(row.get("advantage")),
        )


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the values of a log."""
    numbers = {k: v for k, v in values.items() if isinstance(v, int | float)}
    return {str(k): float(v) for k, v in numbers.items() if math.isfinite(v)}


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


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
