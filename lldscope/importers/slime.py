"""slime's dumps (`--dump-details`): actions and likelihood, but no Δ. Other pickles are skipped.

slime (0d234f3 `utils/types.py`, 1706a09 `backends/megatron_utils/train_dump_utils.py`) writes for
each rollout step `rollout_data/<id>.pt`, whose samples have text, reward, group and the engine's
log-probs of the response's tokens, and `train_data/<id>_<rank>.pt`, whose samples have the
trainer's log-probs and the advantages; `rollout_position` says which is which. Actions are the
maximal runs of the loss mask.

SkyRL's `dump_data_batch` (0.3.0), checkpoints and the like are pickles of their own classes. To
load one is to run what is in it, and it needs their packages; so it is left to the person who
trusts the file.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..recording.batch import runs_of
from ..recording.episodes import short_hash
from .reading import as_step, natural_key, number
from .rollouts import Rollouts, golden_of
from .source import Findings, Rows, Scalars, has_package
from .token_logs import floats, sequence

ZIP = b"PK\x03\x04"
# slime keeps the experts of a mixture as arrays of numpy.
_ARRAYS = [
    np.empty(0).__reduce__()[0], np.ndarray, np.dtype, codecs.encode,
    *(type(np.dtype(kind)) for kind in "?bhilqBHILQefd"),
]  # fmt: skip
_BEGINNING = 1 << 12  # of a file, where the keys of the outermost dict are
_NAME = re.compile(r"([0-9]{1,10})(_[0-9]+)?")  # step, and rank of a file of the trainer


def is_dump(head: bytes) -> bool:
    start = head[:_BEGINNING]
    return start.startswith(ZIP) and b"rollout_id" in start and b"samples" in start


class SlimeDumps:
    name = "slime"
    description = "slime's dumps (--dump-details), which need torch"

    def looks_like(self, path: Path, head: bytes) -> bool:
        return is_dump(head)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        generated: dict[int, Path] = {}
        trained: dict[int, list[Path]] = {}
        for path in sorted(paths, key=natural_key):
            match = _NAME.fullmatch(path.stem)
            step = as_step(match[1]) if match else None
            if match is None or step is None:
                findings.skip("dumps of evaluations, or of no step")
            elif match[2] or path.parent.name == "train_data":
                trained.setdefault(step, []).append(path)
            else:
                generated[step] = path
        rollouts = Rollouts(findings)
        for step, path in sorted(generated.items()):
            by_position = {i: s for p in trained.pop(step, ()) for i, s in _trained(p, findings)}
            for i, sample in enumerate(_samples(path, findings)):
                yield from _rollout(step, sample, by_position.get(i, {}), rollouts)
        yield from rollouts.finish()
        for left in trained.values():
            findings.skip("dumps of training without the dump of their rollouts", len(left))


def _samples(path: Path, findings: Findings) -> list[Any]:
    """The samples of a dump. `weights_only` loads plain data and tensors, and calls nothing."""
    if not has_package("torch", "slime's dumps", findings, "train"):
        return []
    torch = import_module("torch")
    try:
        with torch.serialization.safe_globals(_ARRAYS):
            samples = torch.load(path, map_location="cpu", weights_only=True)["samples"]
    except Exception as error:  # a damaged file fails in any way there is
        findings.skip("dumps that cannot be read")
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        findings.note(f"{path.name}: {reason[:200]}")
        return []
    findings.advance(path.stat().st_size)
    return samples if isinstance(samples, list) else []


def _trained(path: Path, findings: Findings) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The trainer's samples, by their position among the rollouts."""
    for sample in _samples(path, findings):
        position = sample.get("rollout_position") if isinstance(sample, dict) else None
        if isinstance(position, int):
            yield position, sample
        else:
            findings.skip("trained samples without a position among the rollouts")


def _rollout(
    step: int, sample: Any, trained: Mapping[str, Any], rollouts: Rollouts
) -> Iterator[Rows]:
    n = sample.get("response_length") if isinstance(sample, dict) else None
    n = n if isinstance(n, int) else 0
    spans = runs_of(floats(sample.get("loss_mask") or [1] * n, n) or []) if n else []
    if not spans:
        rollouts.findings.skip("samples without a trained token")
        return
    reward = number(sample.get("reward"))
    advantages = floats(trained.get("advantages"), n)
    prompt, response = sample.get("prompt"), sample.get("response")
    text = f"{prompt}{response}" if isinstance(prompt, str) else response
    group = sample.get("group_index")
    yield from sequence(
        rollouts, step, group if isinstance(group, int) else None, spans,
        {
            "behaviour": floats(sample.get("rollout_log_probs"), n),
            "old": floats(trained.get("log_probs"), n),
        },
        prompt_hash=short_hash(prompt) if isinstance(prompt, str) else None,
        reward=reward,
        response=response if isinstance(response, str) else None,
        golden=golden_of(sample),
        advantage=advantages[spans[0][0]] if advantages else None,
        truncated=sample.get("status") == "truncated",
        text=text if isinstance(text, str) else None,
    )  # fmt: skip


class Pickle:
    name = "pickle"
    description = "pickles (SkyRL's batches, checkpoints), which are skipped"

    def looks_like(self, path: Path, head: bytes) -> bool:
        return path.suffix in (".pt", ".pth", ".pkl", ".pickle") and not is_dump(head)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        findings.skip("pickles, which are not loaded", len(paths))
        findings.note(
            f"{paths[0]} is a pickle: loading it would run code in it. Import the trainer's "
            "console output, W&B or TensorBoard, or write train_data_step<N>.jsonl from the "
            "trainer's own environment: docs/importing.md has its fields."
        )
        return iter(())
