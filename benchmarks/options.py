"""What settings that make a step shorter gain on a processor, and what torch.compile would.

python -m benchmarks.options            steps of `tiny` with each setting, in turns
python -m benchmarks.options compile    passes of the decoder, compiled and not; takes minutes
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from lldscope_trainer.config import load_config
from lldscope_trainer.policy.logprobs import action_logps
from lldscope_trainer.policy.model import load_policy
from lldscope_trainer.train import Trainer

import lldscope

from .policies import random_policy

STEPS, WARM_UP, REPEATS = 20, 3, 6
OPTIONS = ("", "skip_constant_groups=true", "packing=true")
WIDTHS = (60, 75, 92, 110, 130, 160)
CPU = torch.device("cpu")


def options() -> None:
    trainers = {
        option: Trainer(
            load_config("tiny", ["eval_questions=0", *filter(None, [option])]),
            lldscope.NullRecorder(),
        )
        for option in OPTIONS
    }
    seconds = {option: {"update": 0.0, "all": 0.0} for option in OPTIONS}
    for step in range(WARM_UP + STEPS):
        for option, trainer in trainers.items():
            start, total = time.process_time(), [0.0]
            trainer.update = timed(trainer.update, total)  # type: ignore[method-assign]
            trainer.step(step)
            del trainer.update
            if step >= WARM_UP:
                seconds[option]["update"] += total[0]
                seconds[option]["all"] += time.process_time() - start
    for option, parts in seconds.items():
        print(f"{option or 'as shipped':26} updates {parts['update'] / STEPS:.3f} s, "
              f"steps {parts['all'] / STEPS:.3f} s of processor time")


def timed(call: Any, total: list[float]) -> Any:
    """The same call, whose processor time is added up."""

    def wrapper(*arguments: Any) -> Any:
        start = time.process_time()
        result = call(*arguments)
        total[0] += time.process_time() - start
        return result

    return wrapper


def compiled() -> None:
    torch.set_num_threads(1)
    models = {
        "the shipped policy": load_policy("tiny", CPU).model,
        "4 layers of 128": random_policy(128, 4).model,
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
    compiled() if "compile" in sys.argv[1:] else options()
