"""slime's dumps (`--dump-details`): actions and likelihood levels, but no Δ.

slime (0d234f3 `utils/types.py`, 1706a09 `backends/megatron_utils/train_dump_utils.py`) writes for
each rollout step `rollout_data/<id>.pt`, whose samples have text, reward, group and the engine's
log-probs of the response's tokens, and `train_data/<id>_<rank>.pt`, whose samples have the
trainer's log-probs and the advantages; `rollout_position` says which is which. Actions are the
maximal runs of the loss mask.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..recording.episodes import short_hash
from .reading import natural_key, number
from .rollouts import golden_of
from .source import Findings, Rows
from .token_logs import Sequences, floats, runs_of
from .torch_files import ZIP, load

_BEGINNING = 1 << 12  # of a file, where the keys of the outermost dict stand
_NAME = re.compile(r"(\d+)(_\d+)?")  # step, and rank of a file of the trainer


def is_dump(head: bytes) -> bool:
    start = head[:_BEGINNING]
    return start.startswith(ZIP) and b"rollout_id" in start and b"samples" in start


class SlimeDumps:
    name = "slime"
    description = "slime's dumps (--dump-details), read without running what is in them"
    needs = None

    def looks_like(self, path: Path, head: bytes) -> bool:
        return is_dump(head)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        rollouts: dict[int, Path] = {}
        trained: dict[int, list[Path]] = {}
        for path in sorted(paths, key=natural_key):
            match = _NAME.fullmatch(path.stem)
            if match is None:
                findings.skip("dumps of evaluations, or of no step")
            elif match[2] or path.parent.name == "train_data":
                trained.setdefault(int(match[1]), []).append(path)
            else:
                rollouts[int(match[1])] = path
        batch = Sequences(findings)
        for step, path in sorted(rollouts.items()):
            by_position = {i: s for p in trained.pop(step, ()) for i, s in _trained(p, findings)}
            for i, sample in enumerate(_samples(path, findings)):
                yield from _rollout(step, sample, by_position.get(i, {}), batch)
        yield from batch.flush()
        for left in trained.values():
            findings.skip("dumps of training without the dump of their rollouts", len(left))


def _samples(path: Path, findings: Findings) -> list[Any]:
    try:
        samples = load(path)["samples"]
    except (ValueError, KeyError, TypeError):
        findings.skip("dumps that cannot be read")
        return []
    findings.advance(path.stat().st_size)
    return samples if isinstance(samples, list) else []


def _trained(path: Path, findings: Findings) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """What the trainer knows of the rollouts, by their position among the samples."""
    for sample in _samples(path, findings):
        position = sample.get("rollout_position") if isinstance(sample, dict) else None
        if isinstance(position, int):
            yield position, sample
        else:
            findings.skip("trained samples without a position among the rollouts")


def _rollout(
    step: int, sample: Any, trained: Mapping[str, Any], batch: Sequences
) -> Iterator[Rows]:
    n = sample.get("response_length") if isinstance(sample, dict) else None
    n = n if isinstance(n, int) else 0
    spans = runs_of(floats(sample.get("loss_mask") or [1] * n, n) or []) if n else []
    if not spans:
        batch.findings.skip("samples without a trained token")
        return
    reward = number(sample.get("reward"))
    advantages = floats(trained.get("advantages"), n)
    prompt, response = sample.get("prompt"), sample.get("response")
    text = f"{prompt}{response}" if isinstance(prompt, str) else response
    group = sample.get("group_index")
    yield from batch.add(
        step, group if isinstance(group, int) else None, spans,
        {
            "logp_behaviour_sum": floats(sample.get("rollout_log_probs"), n),
            "logp_old_sum": floats(trained.get("log_probs"), n),
        },
        prompt_hash=short_hash(str(prompt)),
        reward=reward,
        response=response if isinstance(response, str) else None,
        golden=golden_of(sample),
        advantage=advantages[spans[0][0]] if advantages else None,
        truncated=sample.get("status") == "truncated",
        text=text if isinstance(text, str) else None,
    )  # fmt: skip
