"""What a call of the recorder costs where the run belongs on an S3 server, and how soon it is read.

The server is moto's, in a process of its own. It is asked twice: while it answers, and while it is
stopped with SIGSTOP, so that it accepts connections and never answers.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from s3_server import s3_server

import lldscope
from lldscope.core.errors import LldscopeError

CALLS = 1500  # of each kind of place
EVERY = 0.003  # seconds between two calls; a step has 30 calls
ROWS = 512  # of a call
FRESH = 5  # steps of which it is measured how soon they are read

_ONES = np.ones(ROWS)
_IDS = np.arange(ROWS)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LLDSCOPE_SPOOL"] = f"{folder}/spool"
        with s3_server() as server:
            with lldscope.Recorder(Path(folder) / "run") as recorder:
                _print("a directory", _calls(recorder))
            with lldscope.Recorder("s3://bucket/run") as recorder:
                _print("a store that answers", _calls(recorder))
                server.send_signal(signal.SIGSTOP)
                _print("a store that does not", _calls(recorder, first=CALLS))
                server.send_signal(signal.SIGCONT)
                again = time.perf_counter()
                last = 2 * CALLS // 30 - 1
                _wait_for(last)
                print(
                    f"readable after the store answers again  {time.perf_counter() - again:6.1f} s"
                )
                seconds = []
                for step in range(last + 1, last + 1 + FRESH):
                    recorder.step(step=step, n_responses=1)
                    seconds.append(_wait_for(step))
                print(f"readable after step()  median {median(seconds):.1f} s, "
                      f"at most {max(seconds):.1f} s")  # fmt: skip
                print(f"dropped: {sum(recorder.dropped.values())}")


def _calls(recorder: lldscope.Recorder, first: int = 0) -> list[float]:
    """Seconds of each call."""
    seconds = []
    for call in range(first, first + CALLS):
        time.sleep(EVERY)
        started = time.perf_counter()
        if call % 30 == 29:
            recorder.step(step=call // 30, n_responses=ROWS)
        else:
            recorder.actions(
                step=call // 30, response_id=_IDS, action_index=call % 30, logp_old_sum=_ONES,
                logp_post_sum=_ONES, n_tokens=_IDS,
            )  # fmt: skip
        seconds.append(time.perf_counter() - started)
    return seconds


def _wait_for(step: int) -> float:
    """Seconds until a reader that asks again and again sees a step."""
    started = time.perf_counter()
    while True:
        try:
            with lldscope.open_run("s3://bucket/run") as run:
                while not (run.sql("SELECT max(step) n FROM steps").n[0] >= step):
                    time.sleep(0.1)
                    run.refresh()
            return time.perf_counter() - started
        except LldscopeError:
            time.sleep(0.1)


def _print(place: str, seconds: list[float]) -> None:
    ms = np.array(seconds) * 1e3
    print(f"a call with {ROWS} rows to {place:22} median {np.median(ms):.3f} ms, "
          f"p99 {np.quantile(ms, 0.99):.3f} ms, at most {ms.max():.1f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
