"""A step beside TRL's on the same task, by the benchmark of tests/bench/trl.py."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from lldscope_trainer.algorithms.update import Updater
from lldscope_trainer.optim.optimizer import TorchOptimizer
from lldscope_trainer.policy.flops import Flops, peak_flops

from tests.bench import trl
from tests.helpers.keeper import one_step

from .checks import Figures, NotRun, Place, check, need
from .made import alone, batch, policy, settings

SLOWEST = 1.0
"""Times TRL's step."""
LEAST_MFU = 0.25
"""Of the updates on a 0.5B policy."""


def race(place: Place) -> tuple[trl.Ours, trl.Clock]:
    """A few steps of both in turns."""
    need("trl")
    case = trl.Case(
        "the made policy", None, place.size(256, 16), place.size(6, 2),
        device=place.device.type, dtype="float32" if place.small else "bfloat16",
    )  # fmt: skip
    questions = trl.draw_questions(trl.WARM_UP + case.rounds)
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        ours = trl.Ours(case, place.model, questions, Path(folder))
        theirs, clock = trl.their_trainer(case, place.model, questions, Path(folder), ours)
        theirs.train()
        ours.recorder.close()
    return ours, clock


@check("a step beside TRL's")
def beside_trl(place: Place) -> tuple[str, Figures]:
    if place.cuda:
        torch.cuda.reset_peak_memory_stats()
    ours, clock = race(place)
    own, other = (median(wall for wall, _ in s.seconds[trl.WARM_UP :]) for s in (ours, clock))
    tokens = sum(ours.recorder.sampled[trl.WARM_UP :]) / len(ours.recorder.sampled[trl.WARM_UP :])
    rate = tokens / own
    figures: Figures = {"seconds": own, "seconds_trl": other, "ratio": own / other, "rate": rate}
    said = f"{own:.2f} s, TRL {other:.2f} s: {own / other:.2f} of its time; {rate:.0f} tokens/s"
    if place.cuda:
        figures["peak_bytes"] = torch.cuda.max_memory_allocated()
        said += f"; peak {figures['peak_bytes'] / 2**30:.1f} GiB, TRL's model included"
    # On the CPU sizes are so small, and the machine so shared, that only the logic is tried.
    assert place.small or own <= SLOWEST * other, f"{said}; allowed {SLOWEST:g}"
    return said, figures


@check("MFU of the updates")
def mfu(place: Place) -> tuple[str, Figures]:
    peak = peak_flops(place.device)
    if peak is None:
        raise NotRun("what this device could do at most is not known (trainer/policy/flops.py)")
    model = policy(place, torch.bfloat16)
    made = batch(place, model.model, 64)
    config = settings(place, "updates=2", "micro_batch=16", "dtype=bfloat16", "buckets=1")
    updater = Updater(config, TorchOptimizer(model, config, alone(place)), alone(place))
    one_step(updater, made, 0, seed=0, answer_weight=1.0)
    torch.cuda.synchronize()
    started = time.perf_counter()
    one_step(updater, made, 1, seed=0, answer_weight=1.0)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    used = 3 * Flops(model.model).forward(made.lengths, int(made.mask.sum())) / seconds / peak
    said = f"{used:.1%} of {peak / 1e12:.0f} TFLOP/s, {sum(made.lengths) / seconds:.0f} tokens/s"
    assert used >= LEAST_MFU, f"{said}; floor {LEAST_MFU:.0%}"
    return said, {"mfu": used, "peak": peak}
