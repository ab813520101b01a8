"""Another account of the machine: it learns nothing from the dashboard, and finds no token."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up_runs import write_run

from lldscope.core.listening import user_token

NOBODY = 65534


class Dashboard:
    """`lldscope dash` with the token that it makes itself, as after `lldscope dash runs`."""

    def __init__(self, root: Path, home: Path, *options: str) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "LLDSCOPE_TOKEN"}
        environment |= {"XDG_STATE_HOME": str(home), "XDG_CACHE_HOME": str(home)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lldscope", "dash", str(root), "--port", "0", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        assert self.process.stderr is not None
        self.told = [self.process.stderr.readline() for _ in range(3)]
        address = self.told[0].split()[-1]
        self.place, _, query = address.removeprefix("http://").partition("/")
        self.token = query.removeprefix("?token=")

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.place, timeout=300)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def dashboard(home: Path) -> Iterator[Dashboard]:
    write_run(home / "runs" / "secret-run", 20)
    server = Dashboard(home / "runs", home)
    yield server
    server.stop()


def as_nobody(question: Any) -> str:
    """What another account gets from a function; the user's own, where we cannot be another."""
    "".encode("idna")  # another account may be unable to import what http.client needs
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            text = str(question())
        except BaseException as error:
            text = type(error).__name__
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.parametrize("path", ["/", "/metrics", "/run/secret-run", "/_dash-layout"])
def test_another_account_learns_nothing(dashboard: Dashboard, path: str) -> None:
    text = as_nobody(lambda: dashboard.ask(path))
    assert text.startswith("(401,")
    assert "secret-run" not in text


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another account")
def test_another_account_finds_the_token_nowhere(dashboard: Dashboard, home: Path) -> None:
    (file,) = home.rglob("dashboard-token")
    assert as_nobody(file.read_text) == "PermissionError"
    command = Path(f"/proc/{dashboard.process.pid}/cmdline")
    assert dashboard.token not in as_nobody(command.read_text)


def test_the_address_that_is_printed_lets_in_and_metrics_take_a_bearer(
    dashboard: Dashboard,
) -> None:
    assert len(dashboard.token) >= 32
    assert dashboard.ask(f"/run/secret-run?token={dashboard.token}")[0] == 200
    status, text = dashboard.ask("/metrics", Authorization=f"Bearer {dashboard.token}")
    assert (status, "secret-run" in text) == (200, True)


def test_the_token_stays_the_same_for_an_account(
    dashboard: Dashboard, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    assert user_token() == dashboard.token
    (file,) = home.rglob("dashboard-token")
    file.chmod(0o644)
    assert user_token() == dashboard.token
    assert file.stat().st_mode & 0o777 == 0o600


def test_without_a_token_everybody_here_is_let_in_and_the_command_ends_quietly(
    dashboard: Dashboard, home: Path, lldscope_command: Any
) -> None:
    open_to_all = Dashboard(home / "runs", home, "--no-token")
    try:
        assert open_to_all.token == ""
        assert open_to_all.ask("/assets/style.css")[0] == 200
        port = open_to_all.place.partition(":")[2]
        busy = lldscope_command("dash", home / "runs", "--port", port)
        assert (busy.returncode, busy.stdout) == (1, "")
        assert f"ort {port} is in use" in busy.stderr
        assert "--port" in busy.stderr
        assert busy.stderr.strip().count("\n") == 0
    finally:
        open_to_all.process.send_signal(signal.SIGINT)
        out, err = open_to_all.process.communicate(timeout=60)
    assert "ssh -L" in open_to_all.told[1]
    assert (open_to_all.process.returncode, out, err) == (130, "", "")
