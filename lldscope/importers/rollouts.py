"""Rollouts as text: verl's `<step>.jsonl` dumps and TRL's `completions_<step>.parquet`.

They hold the text and the reward of every rollout, and no log-probabilities.

verl 0.9.1 (`trainer/ppo/v1/trainer_base.py`, `trainer.rollout_data_dir`): `input, output, gts,
score, step`, extras of the reward function, and `uid` = "sample_rollout_output"; without it a group
is what shares its `input`. TRL 1.16 (`trainer/grpo_trainer.py`, `log_completions`): `step, prompt,
completion, advantage`, a column per reward function, and what `log_extra` was given.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..recording.episodes import (
    Episode,
    Turn,
    exact_match,
    golden_answers,
    has_tags,
    parse,
    short_hash,
)
from .limits import MAX_ACTIONS
from .reading import as_step, first_keys, first_object, natural_key, number, objects
from .source import Findings, ImportRequest, Rows

BATCH = 2000  # rollouts in a piece, at most …
MAX_WAITING = 50_000  # actions, …
MAX_CHARACTERS = 16 << 20  # … and about so much of their text
_GOLDEN = ("gts", "golden_answers", "ground_truth", "target", "answer", "solution", "label")
_SHOWN = 20  # folders in a message
_NO_REWARD = {"step", "prompt", "completion", "advantage"}
NO_EPISODE: dict[str, Any] = dict.fromkeys(Episode((), None).columns())


class Batch:
    """Rollouts on their way into rows of `responses` and `actions`, a piece of a step at a time."""

    def __init__(self, findings: Findings, size: int = BATCH) -> None:
        self.findings, self._size = findings, size
        self.step = -1
        self._ids: dict[int, int] = {}  # step → rollouts so far
        self._groups: dict[int, dict[Any, int]] = {}  # step → those of it, numbered as they come
        self._tags = False  # once seen, a rollout without them is one that does not follow them
        self._characters = 0  # of the piece
        self._responses: list[dict[str, Any]] = []
        self._actions: list[dict[str, Any]] = []

    def parse(self, response: str | None, prompt: str = "") -> Episode | None:
        """The actions in a text; None without a text, or while no text has had tags."""
        self._tags = self._tags or has_tags(response or "") or has_tags(prompt)
        return parse(response) if self._tags and response is not None else None

    def add(
        self,
        step: int,
        group: Any,
        response: Mapping[str, Any],
        actions: Iterable[Mapping[str, Any]],
    ) -> Iterator[Rows]:
        """One rollout: its row of `responses` and those of its actions, all with the same columns.
        A group of None is not known. Yields rows that are complete."""
        full = (
            len(self._responses) >= self._size
            or len(self._actions) >= MAX_WAITING
            or self._characters >= MAX_CHARACTERS
        )
        if step != self.step or full:
            yield from self.flush()
        self.step = step
        self._characters += len(response.get("text") or "")
        self._ids[step] = self._ids.get(step, -1) + 1
        stamp = {"step": step, "response_id": self._ids[step]}
        if group is not None:
            known = self._groups.setdefault(step, {})
            group = known.setdefault(group, len(known))
        self._responses.append({**stamp, "group_id": group, **response})
        new = [{**stamp, "action_index": i, **a} for i, a in enumerate(actions)]
        if len(new) > MAX_ACTIONS:
            reason = f"actions after the first {MAX_ACTIONS:,} of a response"
            self.findings.skip(reason, len(new) - MAX_ACTIONS)
        self._actions += new[:MAX_ACTIONS]

    def flush(self) -> Iterator[Rows]:
        for table, rows in (("responses", self._responses), ("actions", self._actions)):
            if rows:
                yield Rows(table, {name: [row[name] for row in rows] for name in rows[0]})
                rows.clear()
        self._characters = 0


def rollout(
    batch: Batch,
    step: int,
    group: str,
    prompt: str,
    output: str,
    row: Mapping[str, Any],
    **known: Any,
) -> Iterator[Rows]:
    """Add one rollout to a batch; `row` may hold golden answers and a verdict."""
    episode = batch.parse(output, prompt)
    answer = episode.answer if episode else None
    response = {
        "prompt_hash": short_hash(prompt),
        "data_source": _text(row.get("data_source")),
        "correct": _correct(batch.findings.request, known["reward"], answer, row),
        "text": prompt + output,
        **(episode.columns() if episode else NO_EPISODE | {"n_actions": 1}),
    }
    turns = episode.turns if episode else (Turn("text"),)
    return batch.add(step, group, response | known, map(asdict, turns))


def _correct(
    request: ImportRequest, reward: Any, answer: str | None, row: Mapping[str, Any]
) -> bool | None:
    accuracy = row.get("acc")
    accuracy = float(accuracy) if isinstance(accuracy, bool) else number(accuracy)
    if not request.exact_match and accuracy in (0.0, 1.0):
        return accuracy == 1.0
    return verdict(request, reward, answer, golden_of(row))


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
        batch = Batch(findings)
        for path in sorted(paths, key=natural_key):
            for row in objects(path, findings):
                step, prompt, output = as_step(row.get("step")), row.get("input"), row.get("output")
                if step is None or not isinstance(prompt, str) or not isinstance(output, str):
                    findings.skip("rollouts without a step, input or output")
                    continue
                uid = row.get("uid")
                group = uid.rsplit("_", 2)[0] if isinstance(uid, str) else prompt
                reward = number(row.get("score"))
                yield from rollout(batch, step, group, prompt, output, row, reward=reward)
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

    def looks_like(self, path: Path, head: bytes) -> bool:
        return path.name.startswith("completions") and head.startswith(b"PAR1")

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        from .parquet import parquet_rows

        batch = Batch(findings)
        for path in sorted(paths, key=natural_key):
            for row in parquet_rows(path, findings):
                yield from self._rollout(row, batch)
        yield from batch.flush()
        findings.note(
            "The reward of a TRL completion is the sum of its columns of decimal numbers: the "
            "reward functions. Their weights are not in the file."
        )

    def _rollout(self, row: dict[str, Any], batch: Batch) -> Iterator[Rows]:
        step = as_step(row.get("step"))
        if step is None or row.get("completion") is None:
            batch.findings.skip("completions without a step or text")
            return
        prompt, output = as_text(row.get("prompt")), as_text(row["completion"])
        rewards = [v for n, v in row.items() if n not in _NO_REWARD and isinstance(v, float)]
        yield from rollout(
            batch, step, prompt, prompt, output, row,
            reward=sum(rewards) if rewards else None, advantage=number(row.get("advantage")),
        )  # fmt: skip


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
        calls = [calls] if isinstance(calls, str) else calls  # ART's are JSON
        calls = calls if isinstance(calls, list) else ()
        content += "".join(f"<tool_call>{call}</tool_call>" for call in calls)
        parts.append(f"<tool_response>{content}</tool_response>" if tool else content)
    return "\n".join(parts)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
