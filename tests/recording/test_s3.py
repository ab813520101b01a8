"""Recording to an S3 server: it stops for a while, and the process that sends is killed."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
from recorded_steps import record_steps

import lldscope
from benchmarks.s3_server import s3_server
from lldscope.core.errors import LldscopeError
from lldscope.recording import spool, writer

PLACE = "s3://bucket/runs/mine"
SECONDS = 300  # generous: a machine under load


def wait_for_steps(n: int) -> None:
    """Until a reader sees n steps, and nothing that is damaged."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            with lldscope.open_run(PLACE) as run:
                assert run.damaged == {}
                if len(run.signals()) == n:
                    return
        except LldscopeError:
            pass  # nothing is there yet
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.mark.slow
def test_a_live_run_on_s3_outlives_its_server_and_its_sender(tmp_path, monkeypatch):
    monkeypatch.setenv("LLDSCOPE_SPOOL", str(tmp_path))
    monkeypatch.setattr(writer, "HEARTBEAT_SECONDS", 0.5)
    senders: list[subprocess.Popen] = []
    start = subprocess.Popen

    def popen(*arguments, **options):
        senders.append(start(*arguments, **options))
        return senders[-1]

    with s3_server() as server:
        monkeypatch.setattr(spool.subprocess, "Popen", popen)
        with lldscope.Recorder(PLACE) as recorder:
            record_steps(recorder, range(3))
            wait_for_steps(3)
            server.send_signal(signal.SIGSTOP)  # it accepts connections and does not answer
            record_steps(recorder, range(3, 6))
            recorder.flush()
            server.send_signal(signal.SIGCONT)
            wait_for_steps(6)
            for sender in senders:
                sender.kill()
            record_steps(recorder, range(6, 9))
            wait_for_steps(9)
            with lldscope.open_run(PLACE) as run:
                assert run.info["status"] == "running"
        assert not list(tmp_path.glob("*/a1-*/")), "all of it is on the store"
        wait_for_steps(9)
        for sender in senders:
            sender.kill()
            sender.wait()
