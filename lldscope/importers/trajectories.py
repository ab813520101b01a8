"""Rollouts as plain JSON lines, of a loop of one's own.

A line is an object with a step, a prompt, a response and a reward, under names of
which the usual ones are known and any may be given (`--map response=NAME`). Prompt and response are
texts or lists of messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .metrics import step_of
from .reading import first_keys, natural_key, number, objects
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
        fields = (_STEPS, NAMES["prompt"], NAMES["response"])
        return (
            head.lstrip().startswith(b"{")
            and all(keys & set(names) for names in fields)
            and not VerlRollouts().looks_like(path, head)
        )

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        maps = findings.request.columns
        names = {ours: (maps[ours],) if ours in maps else usual for ours, usual in NAMES.items()}
        rollouts = Rollouts(findings)
        for path in sorted(paths, key=natural_key):
            for row in objects(path, findings):
                key_step = step_of(row, maps.get("step"))
                parts = {ours: _first(row, theirs) for ours, theirs in names.items()}
                if key_step is None or not isinstance(parts["response"], str | list):
                    findings.skip("rollouts without a step or a response")
                    continue
                prompt, response = parts["prompt"], as_text(parts["response"])
                group = as_text(prompt) if parts["group"] is None else str(parts["group"])
                yield from rollout(
                    rollouts, key_step[1], group, prompt, response,
                    {**row, "acc": parts["correct"]},
                    reward=number(parts["reward"]), advantage=number(parts["advantage"]),
                )
        yield from rollouts.finish()


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)
