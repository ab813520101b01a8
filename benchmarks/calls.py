"""What a call of a recorder costs the loop that makes it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

CALLS = 1500
EVERY = 0.003  # seconds between two calls
OF_STEP = 30  # calls
ROWS = 512  # of a call

_ONES = np.ones(ROWS)
_IDS = np.arange(ROWS)


def timed(recorder: Any, first: int = 0) -> np.ndarray:
    """Seconds of each call by the clock, the first of them being number `first` of the run."""
    seconds = []
    for call in range(first, first + CALLS):
        time.sleep(EVERY)
        start = time.perf_counter()
        if call % OF_STEP == OF_STEP - 1:
            recorder.step(step=call // OF_STEP, n_responses=ROWS)
        else:
            recorder.actions(
                step=call // OF_STEP, response_id=_IDS, action_index=call % OF_STEP,
                logp_old_sum=_ONES, logp_post_sum=_ONES, n_tokens=_IDS,
            )
        seconds.append(time.perf_counter() - start)
    return np.array(seconds)


def line(place: str, seconds: np.ndarray) -> str:
    ms = seconds * 1e3
    return (
        f"a call with {ROWS} rows to {place:22} median {np.median(ms):.3f} ms, "
        f"p99 {np.quantile(ms, 0.99):.3f} ms, at most {ms.max():.1f} ms"
    )
