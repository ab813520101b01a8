"""vLLM beside the trainer's policy: python -m tests.gpu.vllm_worker MODEL

Prints a line of JSON. Gaps are mean differences of log-probabilities in nats.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from lldscope_trainer.engines.vllm_engine import VllmEngine
from lldscope_trainer.policy.model import Policy, load_policy
from lldscope_trainer.rollout.tokens import Sampling

from tests.gpu.made import CUDA, DEVICE, settings
from tests.helpers.plain_engine import disturb, gaps, write_turns

SYNCS = 10


def gap(policy: Policy, engine: VllmEngine) -> float:
    """Mean over tokens that the engine samples now."""
    rows = [policy.encode(f"Question: What is the capital of {x}?\n") for x in ("Chad", "Peru")]
    return float(gaps(policy, rows, write_turns(engine, rows, [24] * 2, 1, Sampling())).mean())


def sleep(policy: Policy, engine: VllmEngine, records: dict[str, Any]) -> None:
    """Bytes in use on the whole card awake and asleep, and the gap after waking."""

    def used() -> int:
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return total - free

    records["awake"] = used()
    engine.sleep()
    records["asleep"] = used()
    engine.sync(policy.named_weights())
    records["woken"] = gap(policy, engine)


def examine(model: str, records: dict[str, Any]) -> None:
    """Fill in `records`, one after the other: what comes before a failure is known."""
    dtype = "bfloat16" if CUDA else "float32"
    config = settings(model, "engine=vllm", "engine_memory=0.3", f"dtype={dtype}")
    policy = load_policy(model, DEVICE, getattr(torch, dtype))
    engine = VllmEngine(config, policy.eos_id)
    generator = torch.Generator().manual_seed(0)
    records["dtype"] = dtype
    records["start"] = gap(policy, engine)
    disturb(policy, 0.5, generator)
    records["stale"] = gap(policy, engine)
    start = time.perf_counter()
    engine.sync(policy.named_weights())
    records["sync"] = time.perf_counter() - start
    records["synced"] = gap(policy, engine)
    each = []
    for _ in range(SYNCS):
        disturb(policy, 0.5, generator)
        engine.sync(policy.named_weights())
        each.append(gap(policy, engine))
    records["ten_syncs"] = max(each)
    if CUDA:
        sleep(policy, engine, records)
    rows = [policy.encode("Question: Why?\n")] * 32
    start = time.perf_counter()
    turns = write_turns(engine, rows, [64] * 32, 0, replace(Sampling(), turn_end="length"))
    records["tokens_per_second"] = sum(len(t.ids) for t in turns) / (time.perf_counter() - start)
    worker: Any = engine._llm.llm_engine.model_executor.driver_worker.worker
    kind = type(worker.model_runner)
    records["runner"] = f"{kind.__module__}.{kind.__qualname__}"
    engine.close()


if __name__ == "__main__":
    results: dict[str, Any] = {}
    try:
        examine(sys.argv[1], results)
    finally:
        print(json.dumps(results), flush=True)
