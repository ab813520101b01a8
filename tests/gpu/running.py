"""What goes wrong: memory that runs out, a run that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lldscope_trainer.algorithms.update import Updater
from lldscope_trainer.optim.optimizer import TorchOptimizer

import lldscope
from tests.helpers.keeper import one_step

from .checks import Figures, Place, check, close
from .made import alone, batch, gradient, policy, settings

STEPS = 6
PATIENCE = 120.0
"""Seconds that a check waits for a process before it calls it hung."""


def worker(place: Place, run: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.gpu.worker", str(place.small), place.model, str(run)]
    return subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)


@check("out of memory: smaller passes, the same gradient")
def memory(place: Place) -> tuple[str, Figures]:
    """On a GPU from torch's own limit, which is set so that the undivided pass does not fit; on the
    CPU from a pass that refuses more than two rows."""
    model = policy(place, gradient_checkpointing=True)
    sample = batch(place, model.model, 16, long=True)
    whole = gradient(place, model, sample, "micro_batch=1")
    config = settings(place, "updates=1", "entropy_coefficient=0.01", "buckets=1")
    optimizer = TorchOptimizer(model, config, alone(place))
    updater = Updater(config, optimizer, alone(place))
    copies: list[torch.Tensor] = []

    def step() -> tuple[float, bool]:
        copies.append(torch.cat([p.grad.flatten().float().cpu() for p in optimizer._parameters]))
        optimizer.discard()
        return 0.0, True

    optimizer.step = step  # type: ignore[method-assign]
    if place.cuda:
        sizes = ("micro_batch=4", "micro_batch=16")
        limit_memory(
            *(peak(lambda n=n: gradient(place, model, sample, "buckets=1", n)) for n in sizes)
        )
    else:
        forward = optimizer.forward

        def narrow(ids: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            if len(ids) > 2:
                raise torch.OutOfMemoryError("made up")
            return forward(ids, *arguments, **options)

        optimizer.forward = narrow  # type: ignore[method-assign]
    try:
        one_step(updater, sample, 0, seed=0, answer_weight=1.0)
    finally:
        if place.cuda:
            torch.cuda.set_per_process_memory_fraction(1.0)
    assert updater.shortages, "the undivided pass fitted"
    error = close("the gradient", copies[0], whole, 1e-4)
    return f"in {updater.divided} parts after {updater.shortages[0]}: {error:.0e} off", {
        "divided": updater.divided
    }


def peak(work: Callable[[], object]) -> int:
    """Most bytes that torch had reserved on the card."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    work()
    return torch.cuda.max_memory_reserved()


def limit_memory(small: int, large: int) -> None:
    """Leave torch as many bytes as lie halfway between what passes take that shall fit and what one
    takes that shall not."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(halfway(small, large) / total)


def halfway(small: int, large: int) -> int:
    """AssertionError where the two are so close that what lies between depends on chance."""
    assert large > 1.2 * small, f"{large:.2e} bytes undivided are hardly more than {small:.2e}"
    return (small + large) // 2


@check("killed and resumed", rank=3)
def killed(place: Place) -> tuple[str, Figures]:
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        run = Path(folder) / "run"
        first = worker(place, run)
        end = time.monotonic() + PATIENCE
        try:
            while not list(run.glob("checkpoints/step-*2")):
                assert first.poll() is None, f"it ended: {(first.communicate()[1] or '')[-400:]}"
                assert time.monotonic() < end, f"no checkpoint after {PATIENCE:g} s"
                time.sleep(0.05)
        finally:  # else it would keep the card from the other checks
            first.kill()
            first.communicate()
        again = worker(place, run, "--resume")
        message = again.communicate(timeout=PATIENCE)[1]
        assert again.returncode == 0, message[-400:]
        sample = lldscope.open_run(run)
        steps = sample.signals()["step"].tolist()
        assert steps == list(range(STEPS)), f"the record holds the steps {steps}"
        status = json.loads((run / "run.json").read_text("utf-8"))["status"]
        assert status == "finished", f"the run is {status}"
        went_on = int(sample.sql("select min(step) from steps where attempt > 1").iloc[0, 0])
    return f"went on from step {went_on}, all {STEPS} steps recorded", {"resumed": went_on}
