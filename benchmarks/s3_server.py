"""An S3 server in a process of its own: moto's, which keeps everything in memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from s3fs import S3FileSystem

BUCKET = "bucket"


@contextmanager
def s3_server() -> Iterator[subprocess.Popen[bytes]]:
    """Runs the server, with a bucket `bucket`, and sets the variables that clients look at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = {
        "AWS_ACCESS_KEY_ID": "AKIAlldscopetest", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    S3FileSystem.clear_instance_cache()  # those of another server
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        _make_bucket(server, port)
        yield server
    finally:
        server.kill()
        server.wait()
        S3FileSystem.clear_instance_cache()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _make_bucket(server: subprocess.Popen[bytes], port: int) -> None:
    while True:
        assert server.poll() is None, "the server has ended"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.1)
    S3FileSystem(skip_instance_cache=True).mkdir(BUCKET)
