"""`lldscope demo`: two trainings, the dashboard and the alarms on one machine.

Trains the built-in tiny policy twice from the same warm start and seed, in two processes: once it
goes wrong, once it is cured. Nothing that is shown was trained or recorded before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from ..core.errors import LldscopeError
from ..core.listening import listen, user_token
from ..core.numbers import short
from ..core.terminal import console, plain

if TYPE_CHECKING:
    from ..monitor.follow import Follower, RunUpdate

INTRO = """\
Training a tiny search agent twice, from the same warm start and seed:
  grpo   GRPO at a learning rate that is too high: its correct responses lose likelihood first
  cured  the same with LLDS (action gate) and a third of the learning rate
LLDS alone is not enough at this learning rate; lowering it does most. Another processor rounds
differently, so your curves differ in detail; docs/research/study.md counts what twenty runs did."""

LLDSCOPE = (sys.executable, "-m", "lldscope")
ARMS = {"grpo": (), "cured": ("llds=action", "lr=1.5e-4")}
STOP_SECONDS = 15.0  # for a child to close its run before it is killed
EVERY = 20  # steps between two lines about a training


@dataclass
class Arm:
    """One training: its process, its run and the last update of it."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    follower: Follower
    update: RunUpdate | None = None


@click.command()
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    help="Folder for the new runs.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=8050, help="Port of the dashboard.")
@click.option("--dash/--no-dash", default=True, help="Serve the dashboard.")
def demo(overrides: tuple[str, ...], root: Path, port: int, dash: bool) -> None:
    """Train a tiny policy twice, live in the dashboard: as it collapses, and with LLDS at a third
    of the learning rate.

    Takes a few minutes on two cores, without a GPU or network; then the dashboard stays up until
    Ctrl-C. KEY=VALUE settings go to both trainings, as for `lldscope train`. Starting again makes
    new runs beside the old ones.
    """
    from ..monitor.follow import Follower

    _check_installed(dash)
    if dash:
        listen("127.0.0.1", port).close()  # fails before training if the port is in use
    homes = (root / f"demo-{number}" for number in count(1))
    home = next(home for home in homes if not home.exists())
    home.mkdir(parents=True)
    for ended in (signal.SIGTERM, signal.SIGHUP):  # its children end, too
        signal.signal(ended, lambda number, _: sys.exit(128 + number))
    click.echo(INTRO, err=True)
    with contextlib.ExitStack() as children:
        arms = []
        for name, settings in ARMS.items():
            run, log = home / name, home / f"{name}.log"
            words = ("train", "demo", f"name={name}", *settings, *overrides, "--run", str(run))
            process = children.enter_context(_child(words, log))
            arms.append(Arm(name, process, log, Follower(run)))
        if dash:
            log = home / "dashboard.log"
            words = ("dash", str(root), "--port", str(port))
            dashboard = children.enter_context(_child(words, log))
            token = quote(os.environ.get("LLDSCOPE_TOKEN") or user_token())
            click.echo(f"\nDashboard: http://127.0.0.1:{port}/?token={token}", err=True)
        click.echo(f"Runs:      {home}\n", err=True)
        _follow(arms)
        _summary(arms)
        if any(arm.process.returncode for arm in arms):
            raise LldscopeError(f"A training failed; the logs are in {home}.")
        if dash:
            click.echo("\nThe dashboard stays up; Ctrl-C ends it.", err=True)
            dashboard.wait()
            raise LldscopeError(f"The dashboard ended; the log is {log}: {_last_line(log)}")


def _check_installed(dash: bool) -> None:
    """Check the packages that training and the dashboard need, before anything is trained."""
    needs = ("torch", "transformers", "bm25s", *(("dash", "plotly", "waitress") if dash else ()))
    if missing := [name for name in needs if find_spec(name) is None]:
        extras = "train,dash" if dash else "train"
        packages = ", ".join(missing)
        raise LldscopeError(f"The demo needs {packages}: pip install 'lldscope[{extras}]'")


@contextlib.contextmanager
def _child(words: tuple[str, ...], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a session of its own, so that Ctrl-C reaches it once, from here."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # it may hold the token
    with open(handle, "wb") as sink:
        process = subprocess.Popen(
            [*LLDSCOPE, *words], stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
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


def _follow(arms: list[Arm]) -> None:
    """Print each alarm, and every so many steps a line about each training, until both have
    ended."""
    from .views import alert_text, status_line

    out = console(stderr=True)
    lines = dict.fromkeys((arm.name for arm in arms), -1)
    is_over = False
    while not is_over:
        # Before the runs are read, so that the last rows are read, too.
        is_over = all(arm.process.poll() is not None for arm in arms)
        for arm in arms:
            if (update := arm.follower.poll()) is None:
                continue
            arm.update = update
            for event in update.events:
                out.print(f"{arm.name:10}", alert_text(out, event.alert))
            line = (update.state.last_step or 0) // EVERY
            if line > lines[arm.name]:
                lines[arm.name] = line
                out.print(f"{arm.name:10}", status_line(update.state))
        if not is_over:
            time.sleep(2.0)


def _summary(arms: list[Arm]) -> None:
    """Best and final reward of both, and when the first alarm came."""
    import numpy as np

    for arm in arms:
        run = arm.follower.run
        if run is None or arm.update is None or arm.update.state.last_step is None:
            click.echo(f"{arm.name:10} recorded no step: {_last_line(arm.log)}", err=True)
            continue
        state, e = arm.update.state, run.assess().evidence
        best, last = (short(float(v), 2) for v in (np.fmax.reduce(e.reward), e.reward[-1]))
        steps = [a.step or 0 for a in state.alerts if a.severity != "info"]
        first = f"first alarm at step {min(steps)}" if steps else "no alarm"
        click.echo(
            f"{arm.name:10} reward (ten-step mean) best {best}, at the end {last}; {first}; "
            f"{state.sign.word}",
            err=True,
        )


def _last_line(log: Path) -> str:
    """The last line that a child wrote: after a failure, the reason."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return plain(lines[-1]) if lines else "nothing"
