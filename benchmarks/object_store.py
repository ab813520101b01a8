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

import lldscope
from lldscope.core.errors import LldscopeError

from .calls import CALLS, OF_STEP, line, timed
from .s3_server import s3_server

FRESH = 20  # steps of which it is measured how soon they are read


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LLDSCOPE_SPOOL"] = f"{folder}/spool"
        with s3_server() as server:
            with lldscope.Recorder(Path(folder) / "run") as recorder:
                print(line("a directory", timed(recorder)))
            with lldscope.Recorder("s3://bucket/run") as recorder:
                print(line("a store that answers", timed(recorder)))
                server.send_signal(signal.SIGSTOP)
                print(line("a store that does not", timed(recorder, CALLS)))
                server.send_signal(signal.SIGCONT)
                again = time.perf_counter()
                last = 2 * CALLS // OF_STEP - 1
                with _open_run() as run:
                    _wait_for(run, last)
                    seconds = time.perf_counter() - again
                    print(f"readable after the store answers again  {seconds:6.1f} s")
                    after = [_seconds_until_read(run, recorder, last + i + 1) for i in range(FRESH)]
                print(f"readable after step(), {FRESH} steps  median {median(after):.1f} s, "
                      f"at most {max(after):.1f} s")
                print(f"dropped: {sum(recorder.dropped.values())}")


def _open_run() -> lldscope.Run:
    """The run, as soon as there is one to be read."""
    while True:
        try:
            return lldscope.open_run("s3://bucket/run")
        except LldscopeError:
            time.sleep(0.1)


def _seconds_until_read(run: lldscope.Run, recorder: lldscope.Recorder, step: int) -> float:
    start = time.perf_counter()
    recorder.step(step=step, n_responses=1)
    _wait_for(run, step)
    return time.perf_counter() - start


def _wait_for(run: lldscope.Run, step: int) -> None:
    """Until a reader that asks again and again sees a step."""
    while not (run.sql("SELECT max(step) n FROM steps").n[0] >= step):
        time.sleep(0.1)
        run.refresh()


if __name__ == "__main__":
    main()
