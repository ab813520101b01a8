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

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..recording.batch import runs_of
from ..recording.episodes import short_hash
from .limits import FREE_BYTES, MAX_RATIO
from .reading import as_step, natural_key, number
from .rollouts import Batch, golden_of
from .source import Findings, Rows, Scalars
from .token_logs import SEQUENCES, floats, sequence
from .torch_files import ZIP, load

_BEGINNING = 1 << 12  # of a file, where the keys of the outermost dict are
_NAME = re.compile(r"([0-9]{1,10})(_[0-9]+)?")  # step, and rank of a file of the trainer


def is_dump(head: bytes) -> bool:
    start = head[:_BEGINNING]
    return start.startswith(ZIP) and b"rollout_id" in start and b"samples" in start


class SlimeDumps:
    name = "slime"
    description = "slime's dumps (--dump-details), read without running what is in them"

    def looks_like(self, path: Path, head: bytes) -> bool:
        return is_dump(head)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Rows]:
        rollouts: dict[int, Path] = {}
        trained: dict[int, list[Path]] = {}
        for path in sorted(paths, key=natural_key):
            match = _NAME.fullmatch(path.stem)
            step = as_step(match[1]) if match else None
            if match is None or step is None:
                findings.skip("dumps of evaluations, or of no step")
            elif match[2] or path.parent.name == "train_data":
                trained.setdefault(step, []).append(path)
            else:
                rollouts[step] = path
        batch = Batch(findings, SEQUENCES)
        for step, path in sorted(rollouts.items()):
            by_position = {i: s for p in trained.pop(step, ()) for i, s in _trained(p, findings)}
            # A dump may name one long text as that of any number of samples.
            most = max(FREE_BYTES, MAX_RATIO * path.stat().st_size)
            for i, sample in enumerate(_samples(path, findings)):
                most -= _size(sample)
                if most < 0:
                    findings.skip(f"samples beyond {MAX_RATIO} times the size of their dump")
                    break
                yield from _rollout(step, sample, by_position.get(i, {}), batch)
        yield from batch.flush()
        for left in trained.values():
            findings.skip("dumps of training without the dump of their rollouts", len(left))


def _size(sample: Any) -> int:
    parts = sample.values() if isinstance(sample, dict) else ()
    return sum(len(part) for part in parts if isinstance(part, str | list | dict))


def _samples(path: Path, findings: Findings) -> list[Any]:
    try:
        samples = load(path)["samples"]
    except (ValueError, KeyError, TypeError):
        findings.skip("dumps that cannot be read")
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


def _rollout(step: int, sample: Any, trained: Mapping[str, Any], batch: Batch) -> Iterator[Rows]:
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
    yield from sequence(
        batch, step, group if isinstance(group, int) else None, spans,
        {
            "logp_behaviour_sum": floats(sample.get("rollout_log_probs"), n),
            "logp_old_sum": floats(trained.get("log_probs"), n),
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
            f"{paths[0]} is a pickle: to load it would run code that is in it. Where you trust it, "
            "write train_data_step<N>.jsonl with the trainer's own environment, one rollout a "
            "line: token_ids and token_loss_mask (lists as long as the sequence), rewards, "
            "advantages, prev_logprobs and, if known, generation_logprobs (per token, 0 where "
            "nothing was scored); then import that. Its metrics are in the console output, in W&B "
            "or in TensorBoard."
        )
        return
        yield
