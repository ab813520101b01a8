"""Start, speed and weight sync of vLLM, with the shipped policy on this machine.

python -m tests.bench.engines
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

from tests.helpers.plain_engine import write_turns

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
    elapsed = seconds(lambda: write_turns(engine, rows, [TOKENS] * ROWS, 0, whole))
    synced = seconds(lambda: engine.sync(policy.named_weights()))
    print(
        f"ready after {startup:.1f} s, {ROWS * TOKENS / elapsed:.0f} tokens/s "
        f"({ROWS} rows of {TOKENS}), sync {1000 * synced:.1f} ms"
    )
    engine.close()


if __name__ == "__main__":
    main()
