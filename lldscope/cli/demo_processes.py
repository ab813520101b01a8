"""The processes of `lldscope demo`: two trainings, and the dashboard."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import LldscopeError

if TYPE_CHECKING:
    from ..monitor.alerts import AnyAlert
    from ..monitor.follow import Follower, RunUpdate

Process = subprocess.Popen[bytes]

LLDSCOPE = (sys.executable, "-m", "lldscope")
ARMS = {"grpo": (), "cured": ("llds=action", "lr=1.5e-4")}
DASHBOARD_LOG = "dashboard.log"
STOP_SECONDS = 15.0  # for a child to close its run before it is killed


@dataclass
class Arm:
    """One training of the demo: its process, its run and the last update of it."""

    name: str
    process: Process
    log: Path
    follower: Follower
    update: RunUpdate | None = None

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def refresh(self) -> list[AnyAlert]:
        """Read the run again; the alarms that have changed."""
        update = self.follower.poll()
        self.update = update or self.update
        return [event.alert for event in update.events] if update else []


def check_installed(*, dash: bool) -> None:
    """Check the packages that training and the dashboard need, before anything is trained."""
    needs = ("torch", "transformers", "bm25s", *(("dash", "plotly", "waitress") if dash else ()))
    if missing := [name for name in needs if find_spec(name) is None]:
        extras = "train,dash" if dash else "train"
        packages = ", ".join(missing)
        raise LldscopeError(f"The demo needs {packages}: pip install 'lldscope[{extras}]'")


def check_port_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise LldscopeError(
                f"Port {port} is in use. Choose another with --port, or leave the dashboard out "
                "with --no-dash."
            ) from None


def make_folder(root: Path) -> Path:
    homes = (root / f"demo-{number}" for number in count(1))
    home = next(home for home in homes if not home.exists())
    home.mkdir(parents=True)
    return home


@contextlib.contextmanager
def run_training(home: Path, name: str, overrides: tuple[str, ...]) -> Iterator[Arm]:
    from ..monitor.follow import Follower

    log = home / f"{name}.log"
    run = home / name
    settings = (f"name={name}", *ARMS[name], *overrides)
    command = [*LLDSCOPE, "train", "demo", *settings, "--run", str(run)]
    with _child(command, log) as process:
        yield Arm(name, process, log, Follower(run))


def run_dashboard(root: Path, port: int, home: Path) -> AbstractContextManager[Process]:
    return _child([*LLDSCOPE, "dash", str(root), "--port", str(port)], home / DASHBOARD_LOG)


@contextlib.contextmanager
def _child(command: list[str], log: Path) -> Iterator[Process]:
    """A child in a session of its own, so that Ctrl-C reaches it once, from here."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # it may hold the token
    with open(handle, "wb") as sink:
        process = subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
