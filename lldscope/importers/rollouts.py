"""Rollouts as text: verl's `<step>.jsonl` dumps and TRL's `completions_<step>.parquet`.

They hold the text and the reward of every rollout, and no log-probabilities.

verl 0.9.1 (`trainer/ppo/v1/trainer_base.py`, `trainer.rollout_data_dir`): `input, output, gts,
score, step`, extras of the reward function, and `uid` = "sample_rollout_output"; without it a group
is what shares its `input`. TRL 1.16 (`trainer/grpo_trainer.py`, `log_completions`): `step, prompt,
completion, advantage`, a column per reward function, and what `log_extra` was given.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..recording.episodes import Turn, exact_match, golden_answers, has_tags, parse, short_hash
from .reading import as_step, first_keys, first_object, natural_key, number, objects
from .source import Findings, ImportRequest, Rows

BATCH = 2000  # rollouts in a piece, at most …
MAX_CHARACTERS = 16 << 20  # … and about so much of their text
_GOLDEN = ("gts", "golden_answers", "ground_truth", "target", "answer", "solution", "label")
_SHOWN = 20  # folders in a message
_NO_REWARD = {"step", "prompt", "completion", "advantage"}


class Batch:
    """Rollouts on their way into rows of `responses` and `actions`, a piece of a step at a time."""

    def __init__(self, request: ImportRequest) -> None:
        self.request = request
        self.step = -1
        self._ids: dict[int, int] = {}  # step → rollouts so far
        self._groups: dict[str, int] = {}  # of the step under way
        self._tags = False  # once seen, a rollout without them is one that does not follow them
        self._characters = 0  # of the piece
        self._responses: list[dict[str, Any]] = []
        self._actions: list[dict[str, Any]] = []

    def add(
        self, step: int, prompt: str, output: str, group: str, row: Mapping[str, Any], **known: Any
    ) -> Iterator[Rows]:
        """One rollout; `row` may hold golden answers and a verdict. Gives what is complete."""
        full = len(self._responses) >= BATCH or self._characters >= MAX_CHARACTERS
        if step != self.step or full:
            yield from self.flush()
        self._characters += len(prompt) + len(output)
        if step != self.step:
            self.step, self._groups = step, {}
        response_id = self._ids[step] = self._ids.get(step, -1) + 1
        self._tags = self._tags or has_tags(output) or has_tags(prompt)
        episode = parse(output) if self._tags else None
        turns = episode.turns if episode else (Turn("text"),)
        columns: dict[str, Any] = episode.columns() if episode else {"n_actions": 1}
        stamp = {"step": step, "response_id": response_id}
        self._responses.append(
            stamp
            | {
                "group_id": self._groups.setdefault(group, len(self._groups)),
                "prompt_hash": short_hash(prompt),
                "data_source": _text(row.get("data_source")),
                "correct": self._correct(
                    known.get("reward"), episode.answer if episode else None, row
                ),
                "text": prompt + output,
            }
            | columns
            | known
        )
        for index, turn in enumerate(turns):
            self._actions.append(
                stamp
                | {
                    "action_index": index,
                    "kind": turn.kind,
                    "tool_ok": turn.tool_ok,
                    "docs_hash": turn.docs_hash,
                }
            )

    def flush(self) -> Iterator[Rows]:
        for table, rows in (("responses", self._responses), ("actions", self._actions)):
            if rows:
                yield Rows(table, {name: [r[name] for r in rows] for name in _names(rows)})
                rows.clear()
        self._characters = 0

    def _correct(self, reward: Any, answer: str | None, row: Mapping[str, Any]) -> bool | None:
        accuracy = row.get("acc")
        if not self.request.exact_match and isinstance(accuracy, bool):
            return accuracy
        if not self.request.exact_match and number(accuracy) in (0.0, 1.0):
            return number(accuracy) == 1.0
        return verdict(self.request, reward, answer, golden_of(row))


def _names(rows: list[dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    for row in rows:
        for name in names.keys() - row.keys():
            row[name] = None
    return list(names)


def golden_of(row: Mapping[str, Any]) -> Any:
    """What a log calls its golden answers; None if it has none."""
    return next((row[k] for k in _GOLDEN if row.get(k) is not None), None)


def verdict(
    request: ImportRequest, reward: float | None, answer: str | None, golden: Any
) -> bool | None:
    """Whether a rollout is correct, by the rule of the import; None if that cannot be known."""
    if request.exact_match:
        return None if golden is None else exact_match(answer, golden_answers(golden))
    return None if reward is None or reward != reward else reward >= request.correct_from


def correct_rule(request: ImportRequest) -> str:
    """The rule of `correct` in words, for run.json."""
    if request.exact_match:
        return "exact match of the last <answer> with a golden answer of the log"
    return (
        f"the log's own verdict (acc) where it has one, otherwise reward ≥ {request.correct_from:g}"
    )


class VerlRollouts:
    name = "verl-rollouts"
    description = "verl's rollout dumps (rollout_data_dir)"
    needs = None

    def looks_like(self, path: Path, head: bytes) -> bool:
        if first_object(head) is not None:
            return {"input", "output", "score"} <= first_keys(head)
        # The first rollout is longer than what can be seen of it.
        return head.lstrip().startswith(b'{"input":') or {"input", "output"} <= first_keys(head)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        _refuse_folders(paths)
        batch = Batch(findings.request)
        for path in sorted(paths, key=natural_key):
            for row in objects(path, findings):
                step, prompt, output = as_step(row.get("step")), row.get("input"), row.get("output")
                if step is None or not isinstance(prompt, str) or not isinstance(output, str):
                    findings.skip("rollouts without a step, input or output")
                    continue
                uid = row.get("uid")
                group = uid.rsplit("_", 2)[0] if isinstance(uid, str) else prompt
                yield from batch.add(
                    step, prompt, output, group, row, reward=number(row.get("score"))
                )
        yield from batch.flush()


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
    needs = None

    def looks_like(self, path: Path, head: bytes) -> bool:
        return path.name.startswith("completions") and head.startswith(b"PAR1")

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        batch = Batch(findings.request)
        for path in sorted(paths, key=natural_key):
            try:
                for piece in pq.ParquetFile(path).iter_batches(BATCH):
                    for row in piece.to_pylist():
                        yield from self._rollout(row, batch, findings)
                findings.advance(path.stat().st_size)
            except (OSError, pa.ArrowException):
                findings.skip("Parquet files that cannot be read")
        yield from batch.flush()
        findings.note(
            "The reward of a TRL completion is the sum of its columns of decimal numbers: the "
            "reward functions. Their weights are not in the file."
        )

    def _rollout(self, row: dict[str, Any], batch: Batch, findings: Findings) -> Iterator[Rows]:
        step = as_step(row.get("step"))
        if step is None or row.get("completion") is None:
            findings.skip("completions without a step or text")
            return
        prompt, output = as_text(row.get("prompt")), as_text(row["completion"])
        rewards = [v for n, v in row.items() if n not in _NO_REWARD and _is_reward(v)]
        yield from batch.add(
            step, prompt, output, prompt, row,
            reward=sum(rewards) if rewards else None, advantage=number(row.get("advantage")),
        )  # fmt: skip


def _is_reward(value: Any) -> bool:
    return isinstance(value, float)


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
        content += "".join(f"<tool_call>{call}</tool_call>" for call in calls or ())
        parts.append(f"<tool_response>{content}</tool_response>" if tool else content)
    return "\n".join(parts)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
