"""Rollouts as plain JSON lines, of a loop of one's own, and as ART's trajectories.

A line of one's own is an object with a step, a prompt, a response and a reward, under names of
which the usual ones are known and any may be given (`--map response=NAME`). Prompt and response are
texts or lists of messages.

ART (`art/utils/trajectory_logging.py`, `trajectory_migration.py`, as of September 2026; no file of
a real run was at hand) writes `trajectories/{train,val}/NNNN.parquet`, a row for each trajectory
with its group, reward and messages; older versions JSON lines, one for each group. The step is the
name of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .metrics import step_of
from .parquet import parquet_rows, schema_of
from .reading import as_step, bare_name, first_keys, natural_key, number, objects
from .rollouts import Rollouts, VerlRollouts, as_text, rollout
from .source import Findings, Rows

# Ours → what others call it, the first that is there.
NAMES = {
    "prompt": ("prompt", "question", "query", "input"),
    "response": ("response", "completion", "output", "generation"),
    "reward": ("reward", "score"),
    "group": ("group_id", "group", "prompt_id"),
    "correct": ("correct", "acc"),
    "advantage": ("advantage",),
}
_STEPS = ("step", "global_step", "iteration")


class RolloutLines:
    name = "rollout-lines"
    description = "rollouts of your own, one JSON object each: step, prompt, response, reward"

    def looks_like(self, path: Path, head: bytes) -> bool:
        keys = first_keys(head)
        wanted = (_STEPS, NAMES["prompt"], NAMES["response"])
        return (
            head.lstrip().startswith(b"{")
            and all(keys & set(names) for names in wanted)
            and not VerlRollouts().looks_like(path, head)
        )

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        asked = findings.request.columns
        names = {ours: (asked[ours],) if ours in asked else usual for ours, usual in NAMES.items()}
        rollouts = Rollouts(findings)
        for path in sorted(paths, key=natural_key):
            for row in objects(path, findings):
                found = step_of(row, asked.get("step"))
                known = {ours: _first(row, theirs) for ours, theirs in names.items()}
                if found is None or not isinstance(known["response"], str | list):
                    findings.skip("rollouts without a step or a response")
                    continue
                prompt, response = as_text(known["prompt"]), as_text(known["response"])
                group = prompt if known["group"] is None else str(known["group"])
                yield from rollout(
                    rollouts, found[1], group, prompt, response,
                    {**row, "acc": known["correct"]},
                    reward=number(known["reward"]), advantage=number(known["advantage"]),
                )  # fmt: skip
        yield from rollouts.finish()


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


class ArtTrajectories:
    name = "art"
    description = "ART's trajectories, NNNN.parquet or NNNN.jsonl"

    def looks_like(self, path: Path, head: bytes) -> bool:
        if head.startswith(b"PAR1"):
            schema = schema_of(path)
            return schema is not None and {"group_index", "reward", "messages"} <= set(schema.names)
        return "trajectories" in first_keys(head) and b'"messages_and_choices"' in head

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        rollouts = Rollouts(findings)
        for path in sorted(_of_training(paths, findings), key=natural_key):
            step = as_step(bare_name(path).partition(".")[0])
            if step is None:
                findings.skip("files whose name holds no step")
                continue
            for group, trajectory in _trajectories(path, findings):
                yield from _trajectory(step, group, trajectory, rollouts)
        yield from rollouts.finish()


def _of_training(paths: Sequence[Path], findings: Findings) -> list[Path]:
    taken = [path for path in paths if path.parent.name not in ("val", "test", "eval")]
    if len(taken) < len(paths):
        findings.skip("files of evaluations", len(paths) - len(taken))
    return taken


def _trajectories(path: Path, findings: Findings) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    if ".parquet" in path.suffixes:
        for row in parquet_rows(path, findings):
            yield row.get("group_index"), row
        return
    for i, group in enumerate(objects(path, findings)):
        inside = group.get("trajectories")
        for trajectory in inside if isinstance(inside, list) else ():
            if isinstance(trajectory, dict):
                yield i, trajectory


def _trajectory(
    step: int, group: Any, row: Mapping[str, Any], rollouts: Rollouts
) -> Iterator[Rows]:
    said = row.get("messages") or row.get("messages_and_choices")
    messages = [_message(m) for m in said if isinstance(m, dict)] if isinstance(said, list) else []
    own = [i for i, m in enumerate(messages) if m.get("role") == "assistant"]
    if not own:
        rollouts.findings.skip("trajectories in which the policy said nothing")
        return
    prompt, response = as_text(messages[: own[0]]), as_text(messages[own[0] :])
    yield from rollout(
        rollouts, step, str(group), prompt, response, row, reward=number(row.get("reward"))
    )


def _message(part: dict[str, Any]) -> dict[str, Any]:
    """A message; the policy's own stand in a choice, as the OpenAI API returns it."""
    inside = part.get("message")
    return inside if isinstance(inside, dict) else part
