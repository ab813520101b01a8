"""What the distribution of importance ratios costs a recorder that has log-probabilities anyway.

The same steps, with the engine's, the old and the inner log-probabilities, are recorded into two
runs in turns: as shipped, and with the sums of importance ratios left out. Seconds are those of
the processor, all threads together: rows, Arrow and Parquet.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from unittest import mock

import numpy as np

import lldscope
from lldscope.recording.batch import Batch
from lldscope.recording.columns import StepRows, record

ROLLOUTS, GROUP, ACTIONS, TOKENS = 512, 8, 3, 120
"""Of a step: rollouts, rollouts of a question, actions of a rollout, and tokens of an action; as
many tokens of tool text lie between two actions."""
STEPS = 40


def main() -> None:
    times: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        runs = {on: Path(folder) / str(on) for on in times}
        recorders = {on: lldscope.Recorder(path) for on, path in runs.items()}
        for step in range(STEPS):
            batch = made_up(step)
            for on in (True, False) if step % 2 else (False, True):
                times[on].append(_seconds(recorders[on], batch, on))
        for recorder in recorders.values():
            recorder.close()
        size = {on: _bytes(path) for on, path in runs.items()}
    pairs = [a / b for a, b in zip(times[True], times[False], strict=True)]
    n = ROLLOUTS * ACTIONS * TOKENS
    print(f"{STEPS} steps of {ROLLOUTS} rollouts and {n:,} action tokens, in turns")
    for on, words in ((False, "without ratios"), (True, "with ratios")):
        print(f"{words:15} {median(times[on]) * 1e3:7.1f} ms a step, median; "
              f"least {min(times[on]) * 1e3:.1f}; {size[on] / STEPS / 1e3:.0f} kB")
    print(f"ratio           {median(pairs):7.3f} by step, median; "
          f"{min(times[True]) / min(times[False]):.3f} of the least (goal 1.05)")


def made_up(step: int) -> Batch:
    """Log-probabilities like those of a policy that samples at temperature 1: most tokens are
    certain; engine and inner policy are near the old one."""
    rng = np.random.default_rng(step)
    mask = np.tile(np.repeat([1, 0], TOKENS), ACTIONS)[:-TOKENS]
    shape = (ROLLOUTS, len(mask))
    old = -rng.exponential(0.3, shape)
    return Batch(
        step=step,
        mask=np.tile(mask, (ROLLOUTS, 1)),
        prompt_ids=[[1] * 40] * ROLLOUTS,
        completion_ids=[[2] * len(mask)] * ROLLOUTS,
        rewards=rng.integers(0, 2, ROLLOUTS).astype(float),
        correct=rng.integers(0, 2, ROLLOUTS).astype(bool).tolist(),
        group_ids=np.arange(ROLLOUTS) // GROUP,
        old=old,
        inner=old + rng.normal(0, 0.03, shape),
        behaviour=old + rng.normal(0, 0.01, shape),
        post=old + rng.normal(0, 0.03, shape),
        entropy=rng.exponential(0.3, shape),
    )


def _seconds(recorder: lldscope.Recorder, batch: Batch, ratios: bool) -> float:
    without = mock.patch.object(StepRows, "_ratios", return_value={})
    start = time.process_time()
    if ratios:
        record(recorder, batch)
    else:
        with without:
            record(recorder, batch)
    recorder.flush()
    return time.process_time() - start


def _bytes(run: Path) -> int:
    return sum(f.stat().st_size for f in run.rglob("*.parquet"))


if __name__ == "__main__":
    main()
