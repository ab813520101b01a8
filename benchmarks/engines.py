"""Start, speed and weight sync of vLLM, with the shipped policy on this machine.

python -m benchmarks.engines
"""

from __future__ import annotations

import statistics
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


def main() -> None:
    policy = load_policy("tiny", torch.device("cpu"))
    start = time.perf_counter()
    engine = make_player(TrainConfig(engine="vllm"), policy).engine
    startup = time.perf_counter() - start
    assert engine is not None
    rows = [policy.encode("Question: What is the capital of Chad?\n")] * ROWS
    whole = Sampling(turn_end="length")

    def write() -> None:
        for row, context in enumerate(rows):
            engine.submit(row, context, TOKENS, row, whole)
        n_turns = 0
        while n_turns < ROWS:
            n_turns += len(engine.step())

    elapsed = seconds(write)
    synced = seconds(lambda: engine.sync(policy.model.state_dict().items()))
    print(
        f"ready after {startup:.1f} s, {ROWS * TOKENS / elapsed:.0f} tokens/s "
        f"({ROWS} rows of {TOKENS}), sync {1000 * synced:.1f} ms"
    )
    engine.close()


if __name__ == "__main__":
    main()
