"""Pickles: recognized, and not loaded.

SkyRL's `dump_data_batch` (0.3.0), checkpoints and the like are pickles of their own classes. To
load one is to run what is in it, and it needs their packages; so it is left to the person who
trusts the file. slime's dumps hold plain data, which `slime` reads without running anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .slime import is_dump
from .source import Findings, Scalars


class Pickle:
    name = "pickle"
    description = "pickles (SkyRL's batches, checkpoints), which are skipped"
    needs = None

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
