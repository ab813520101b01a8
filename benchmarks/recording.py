"""What recording costs a tiny training step, in processor time.

Two ways to see it, in one run: where the time of a recorded step goes, and whole steps with
everything recorded against steps of the same seed with nothing recorded, in turns.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from lldscope_trainer.config import load_config
from lldscope_trainer.train import Trainer

import lldscope

STEPS = 30
WARM_UP = 17  # until as many responses are kept as there will ever be
SIZE = ["prompts=16", "top_p=0.9", "eval_questions=0"]
SCORING = {"_rescore": "Δ of a quarter", "score_retained": "kept responses"}
ROWS = "rows, training thread"
WRITER = "rows, recorder's thread"


def main() -> None:
    recorded = load_config("tiny", SIZE)
    bare = load_config("tiny", [*SIZE, "rescore_share=0", "retention=0", "tokens_every=0"])
    parts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        recorder = lldscope.Recorder(Path(folder) / "run")
        with_, without = Trainer(recorded, recorder), Trainer(bare, lldscope.NullRecorder())
        for method, name in {**SCORING, "_record": ROWS}.items():
            _count(with_, method, name, parts)
        seconds: dict[str, list[float]] = {"recorded": [], "bare": []}
        for step in range(WARM_UP + STEPS):
            if step == WARM_UP:
                parts.clear()
            for name, trainer in (("recorded", with_), ("bare", without)):
                process, start = time.process_time(), time.thread_time()
                trainer.step(step)
                thread = time.thread_time() - start
                parts[WRITER] += time.process_time() - process - thread  # in both, as it comes
                if step >= WARM_UP:
                    seconds[name].append(thread)
        recorder.close()
        size = sum(f.stat().st_size for f in Path(folder).rglob("*.parquet"))
    _print(parts, seconds, size)


def _count(trainer: Any, method: str, name: str, parts: Counter[str]) -> None:
    """Add the processor time of this thread in a method to a part."""
    call = getattr(trainer, method)

    def counted(*arguments: Any) -> Any:
        start = time.thread_time()
        try:
            return call(*arguments)
        finally:
            parts[name] += time.thread_time() - start

    setattr(trainer, method, counted)


def _print(parts: Counter[str], seconds: dict[str, list[float]], size: int) -> None:
    training = sum(seconds["recorded"]) - sum(n for part, n in parts.items() if part != WRITER)
    print(f"{STEPS} steps of 16 × 8 rollouts of the tiny policy, one thread, processor time")
    print(f"{'training step':25} {training / STEPS * 1e3:9.1f} ms  (rollout and updates)")
    for name in (*SCORING.values(), ROWS, WRITER):
        print(f"{name:25} {parts[name] / STEPS * 1e3:9.1f} ms  {parts[name] / training:.2%}")
    share = sum(parts.values()) / training
    print(f"{'recording':25} {sum(parts.values()) / STEPS * 1e3:9.1f} ms  {share:.2%}")
    # Recording changes nothing in the training, so both do the same work step by step.
    ratio = median(seconds["recorded"]) / median(seconds["bare"])
    print(
        f"{'median whole step':25} recorded {median(seconds['recorded']) * 1e3:.1f} ms, bare "
        f"{median(seconds['bare']) * 1e3:.1f} ms, ratio {ratio:.3f}"
    )
    print(f"{'on disk':25} {size / (WARM_UP + STEPS) / 1e3:9.1f} kB per step")


if __name__ == "__main__":
    main()
