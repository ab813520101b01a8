"""Start, speed and weight sync of the engines, with the shipped policy on this machine.

python -m tests.bench.engines [URL of a vLLM server]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from lldscope_trainer.config import TrainConfig
from lldscope_trainer.engines.players import make_player
from lldscope_trainer.policy.model import load_policy
from lldscope_trainer.rollout.tokens import Sampling

ROWS, TOKENS, TIMES = 64, 100, 5


def seconds(call: Callable[[], object]) -> float:
    """Median over TIMES calls."""
    times = []
    for _ in range(TIMES):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(**settings: str) -> None:
    policy = load_policy("tiny", torch.device("cpu"))
    start = time.perf_counter()
    engine = make_player(TrainConfig(**settings), policy).engine
    startup = time.perf_counter() - start
    assert engine is not None
    rows = [policy.encode("Question: What is the capital of Chad?\n")] * ROWS
    whole = Sampling(turn_end="length")
    elapsed = seconds(lambda: engine.generate(rows, [TOKENS] * ROWS, 0, whole))
    synced = seconds(lambda: engine.sync(policy.named_weights()))
    print(
        f"{settings['engine']}: ready after {startup:.1f} s, "
        f"{ROWS * TOKENS / elapsed:.0f} tokens/s ({ROWS} rows of {TOKENS}), "
        f"sync {1000 * synced:.1f} ms"
    )
    engine.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(engine="server", engine_url=sys.argv[1])
    measure(engine="vllm")
