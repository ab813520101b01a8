"""The importers on what the installed tools write; tests/fixtures holds what they once wrote."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pandas as pd
import pytest

import lldscope
from lldscope.cli.import_ import local_paths
from lldscope.core.errors import LldscopeError, SeveralRuns
from lldscope.importers.build import Import
from lldscope.importers.source import ImportRequest

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
TOOLS = ("tensorboard", "wandb", "mlflow", "trackio")


def test_what_the_installed_tools_write_is_read(tmp_path):
    for tool in TOOLS:
        shutil.copytree(FIXTURES / tool, tmp_path / tool)
    environment = {**os.environ, "LLDSCOPE_STORES": str(tmp_path), "DO_NOT_TRACK": "1"}
    for command in (
        [FIXTURES / "make_stores.py", *TOOLS],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "test_import_stores.py"],
    ):
        done = subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
    for tool in TOOLS:  # written anew
        theirs = {p.name: p.read_bytes() for p in (tmp_path / tool).rglob("*") if p.is_file()}
        ours = {p.name: p.read_bytes() for p in (FIXTURES / tool).rglob("*") if p.is_file()}
        assert theirs != ours, tool


def test_a_run_on_mlflows_server_is_the_one_in_its_database(tmp_path, monkeypatch):
    packed = (FIXTURES / "mlflow" / "mlflow.db.gz").read_bytes()
    database = tmp_path / "mlflow.db"
    database.write_bytes(gzip.decompress(packed))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{database}",
        "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
    ]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=tmp_path, start_new_session=True,
            env=os.environ | {"DO_NOT_TRACK": "1"},
        )
    try:
        wait_for(lambda: answers(port), server, tmp_path / "log")
        rows = {}
        for name, uri, source in (
            ("here", f"sqlite:///{database}", "mlflow://made-up/first"),
            ("named", f"http://127.0.0.1:{port}", "mlflow://made-up/first"),
            ("there", "", f"mlflow://127.0.0.1:{port}/made-up/first"),
        ):
            monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
            (path,), request = local_paths((source,), ImportRequest(), follow=False)
            done = Import([path], tmp_path / name, request, None).build(lambda n: None)
            with lldscope.open_run(done.run) as run:
                rows[name] = run.sql("SELECT * FROM all_scalars ORDER BY ALL")
        for name in ("named", "there"):
            pd.testing.assert_frame_equal(rows[name], rows["here"])
        assert len(rows["here"]) > 40
        with pytest.raises(SeveralRuns, match="first, second"):
            local_paths((f"mlflow://127.0.0.1:{port}/made-up",), ImportRequest(), follow=False)
        with pytest.raises(LldscopeError, match="The experiment nothing does not exist"):
            local_paths((f"mlflow://127.0.0.1:{port}/nothing/a",), ImportRequest(), follow=False)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def wait_for(condition, process, log: Path) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.5)
