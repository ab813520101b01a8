"""vLLM beside the trainer's policy: python -m tests.gpu.engine_worker SMALL FOLDER MODEL

Prints a line of JSON. Gaps are mean differences of log-probabilities in nats.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lldscope_trainer.engines.vllm_engine import VllmEngine
from lldscope_trainer.policy.logprobs import action_logps
from lldscope_trainer.policy.model import Policy, load_policy
from lldscope_trainer.rollout.tokens import Sampling

from tests.helpers.plain_engine import write_turns

from .checks import Place
from .made import settings

SYNCS = 10


def gap(policy: Policy, engine: VllmEngine, place: Place) -> float:
    """Mean over tokens that the engine samples now."""
    rows = [policy.encode(f"Question: What is the capital of {x}?\n") for x in ("Chad", "Peru")]
    turns = write_turns(engine, rows, [24] * len(rows), 1, Sampling())
    total = tokens = 0.0
    for row, turn in zip(rows, turns, strict=True):
        ids = torch.tensor([row + turn.ids], device=place.device)
        mask = torch.ones_like(ids)
        mask[0, : len(row)] = 0
        with torch.no_grad():
            mine = action_logps(policy.model, ids, mask)[0, len(row) :].cpu()
        total += float((mine - torch.tensor(turn.logps)).abs().sum())
        tokens += len(turn.ids)
    return total / tokens


def disturb(policy: Policy, generator: torch.Generator) -> None:
    """Change every weight, so that none can be stale unnoticed."""
    with torch.no_grad():
        for weight in policy.model.parameters():
            noise = torch.randn(weight.shape, generator=generator).to(weight.device)
            weight += 0.5 * weight.abs().mean() * noise


def slept(policy: Policy, engine: VllmEngine, place: Place, records: dict[str, Any]) -> None:
    """Bytes in use on the whole card awake and asleep, and the gap after waking."""

    def used() -> int:
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return total - free

    records["awake"] = used()
    engine.sleep()
    records["asleep"] = used()
    engine.sync(policy.model.state_dict().items())
    records["woken"] = gap(policy, engine, place)


def examine(small: bool, folder: Path, model: str, records: dict[str, Any]) -> None:
    """Fill in `records`, one after the other: what comes before a failure is known."""
    place = Place(torch.device("cpu" if small else "cuda"), folder, model, small)
    dtype = "float32" if small else "bfloat16"
    config = settings(place, "engine=vllm", "engine_memory=0.3", f"dtype={dtype}")
    policy = load_policy(model, place.device, getattr(torch, dtype))
    engine = VllmEngine(config, policy.eos_id)
    generator = torch.Generator().manual_seed(0)
    records["dtype"] = dtype
    records["start"] = gap(policy, engine, place)
    disturb(policy, generator)
    records["stale"] = gap(policy, engine, place)
    start = time.perf_counter()
    engine.sync(policy.model.state_dict().items())
    records["sync"] = time.perf_counter() - start
    records["synced"] = gap(policy, engine, place)
    gaps = []
    for _ in range(SYNCS):
        disturb(policy, generator)
        engine.sync(policy.model.state_dict().items())
        gaps.append(gap(policy, engine, place))
    records["ten_syncs"] = max(gaps)
    if place.cuda:
        slept(policy, engine, place, records)
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
        examine(sys.argv[1] == "True", Path(sys.argv[2]), sys.argv[3], results)
    finally:
        print(json.dumps(results), flush=True)
