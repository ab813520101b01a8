"""Recording to an S3 server: it stops for a while, connections to it are cut in the middle of a
request, and the process that sends is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from cutting_proxy import cutting_proxy
from recorded_steps import record_steps
from s3_server import s3_server
from s3fs import S3FileSystem

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.recording import recorder as recorder_module
from lldscope.recording import spool, writer
from lldscope.recording.upload import Sender

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


@pytest.mark.slow
def test_a_put_that_is_cut_in_the_middle_loses_nothing(tmp_path, monkeypatch):
    """In the request line, in the headers and in the body; then the server is away for a while."""
    monkeypatch.setenv("LLDSCOPE_SPOOL", str(tmp_path))
    monkeypatch.setattr(spool, "_keep_sending", lambda path: None)
    monkeypatch.setattr(recorder_module, "CLOSE_SECONDS", 0)
    with (
        s3_server(),
        cutting_proxy(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2])) as proxy,
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        S3FileSystem.clear_instance_cache()
        with lldscope.Recorder(PLACE) as recorder:
            sender = Sender(recorder.path)
            for step, cut_after in enumerate((1, 400, 900)):
                record_steps(recorder, range(step, step + 1))
                recorder.flush()
                proxy.cut_after = cut_after
                with pytest.raises(LldscopeError, match="cannot be written"):
                    sender.round()
                assert proxy.cuts == step + 1
                proxy.come_back()
                sender.round()
                wait_for_steps(step + 1)
        while not sender.round():
            pass
        with lldscope.open_run(PLACE) as run:
            assert run.info["status"] == "finished"
            assert run.damaged == {}
            assert len(run.signals()) == 3
        assert proxy.cuts == 3
