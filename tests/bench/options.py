"""What torch.compile would gain on a processor: passes of the decoder, compiled and not; minutes.

python -m tests.bench.options
"""

from __future__ import annotations

import time
from typing import Any

import torch
from lldscope_trainer.policy.logprobs import action_logps
from lldscope_trainer.policy.model import load_policy

from tests.study.tiny import new_policy

REPEATS = 6
WIDTHS = (60, 75, 92, 110, 130, 160)
CPU = torch.device("cpu")


def compiled() -> None:
    torch.set_num_threads(1)
    models = {
        "the shipped policy": load_policy("tiny", CPU).model,
        "4 layers of 128": new_policy(seed=0, hidden=128, layers=4).model.eval(),
    }
    for name, model in models.items():
        for kind in ("plain", "compiled"):
            if kind == "compiled":
                model.get_decoder().compile(dynamic=True)
            start = time.perf_counter()
            for width in WIDTHS:
                one_pass(model, width)
            first = time.perf_counter() - start
            best = sum(min(one_pass(model, width) for _ in range(REPEATS)) for width in WIDTHS)
            print(f"{name}, {kind}: {best:.3f} s, the first passes {first:.1f} s", flush=True)


def one_pass(model: Any, width: int) -> float:
    """Processor time of a forward and backward pass of eight rows."""
    generator = torch.Generator().manual_seed(width)
    ids = torch.randint(20, 400, (8, width), generator=generator)
    mask = torch.ones_like(ids)
    mask[:, :10] = 0
    model.zero_grad()
    start = time.process_time()
    action_logps(model, ids, mask).sum().backward()
    return time.process_time() - start


if __name__ == "__main__":
    compiled()
