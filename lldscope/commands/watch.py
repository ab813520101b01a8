"""`lldscope watch RUN`: follow a live run until it ends, a time limit, or an alarm."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .check import arl_option, exit_code, exit_options

if TYPE_CHECKING:
    from ..follow import Follower, Look

HOOK_SECONDS = 60  # an --on-alert command that takes longer is ended


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, on every change.")
@click.option("--on-alert", metavar="CMD", help="Run CMD with the alarm as JSON on its stdin.")
@click.option(
    "--until",
    type=click.Choice(["end", "firing"]),
    default="end",
    show_default=True,
    help="firing: stop at the first warning or critical alarm.",
)
@click.option("--timeout", type=click.FloatRange(min=0), help="Stop after this many seconds.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    help="Seconds between looks.",
)
@arl_option
@exit_options
def watch(
    run: Path,
    as_json: bool,
    on_alert: str | None,
    until: str,
    timeout: float | None,
    interval: float,
    arl: float | None,
    fail_on: str,
    exit_style: str,
) -> None:
    """Follow RUN, which need not exist yet, until it ends.

    On a terminal: a status line with sparklines; otherwise a line per change. Exit codes are those
    of check; Ctrl-C is 130.
    """
    from ..follow import Follower

    follower = Follower(run, arl)
    face = _json_lines() if as_json else _live() if sys.stdout.isatty() else _plain_lines()
    state: dict[str, Any] | None = None
    with face as show:
        for look in _looks(follower, interval, timeout):
            show(follower, look)
            if look is None:
                continue
            state = look.state
            for alert in look.changed:
                _hook(on_alert, state, alert)
            if until == "firing" and _serious(state):
                break
    sys.exit(exit_code(state["verdict"] if state else "insufficient", fail_on, exit_style))


def _looks(follower: Follower, interval: float, timeout: float | None) -> Iterator[Look | None]:
    """Looks at the run, `interval` seconds apart, until it has ended or the time is up."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        look = follower.look()
        yield look
        if look is not None and look.state["over"]:
            return
        wait = interval if end is None else min(interval, end - time.monotonic())
        if wait <= 0:
            return
        time.sleep(wait)


def _serious(state: dict[str, Any]) -> bool:
    return any(a["state"] == "firing" and a["severity"] != "info" for a in state["alerts"])


def _hook(command: str | None, state: dict[str, Any], alert: dict[str, Any]) -> None:
    """Give an alarm to the user's own command; its failure is said, not raised."""
    from ..store import to_json

    if command is None or alert["severity"] == "info":
        return
    payload = to_json({"run": state["run"], "path": state["path"], **alert})
    try:
        done = subprocess.run(command, shell=True, input=payload, text=True, timeout=HOOK_SECONDS)
        failed = f"exit code {done.returncode}" if done.returncode else None
    except subprocess.TimeoutExpired:
        failed = f"no end after {HOOK_SECONDS} s"
    if failed:
        click.echo(f"lldscope: the --on-alert command failed: {failed}.", err=True)


# -- faces: each is a context manager that gives a function (follower, look) → None ----------------


@contextlib.contextmanager
def _json_lines() -> Iterator[Any]:
    from ..store import to_json

    last: tuple[Any, ...] | None = None

    def show(follower: Follower, look: Look | None) -> None:
        nonlocal last
        if look is None:
            return
        for alert in look.changed:
            click.echo(to_json({"type": "alert", "run": look.state["run"], **alert}))
        keys = ("schema", "run", "verdict", "evidence", "phase", "last_step", "life", "reason")
        status = {key: look.state[key] for key in keys}
        if tuple(status.values()) != last:
            last = tuple(status.values())
            click.echo(to_json({"type": "status", "time": time.time(), **status}))
        sys.stdout.flush()

    yield show


@contextlib.contextmanager
def _plain_lines() -> Iterator[Any]:
    """For logs: a line when verdict, phase or life change, and for each alarm."""
    from ..terminal import console
    from ..views import alert_text, status_line

    out = console()
    last: tuple[Any, ...] | None = None

    def show(follower: Follower, look: Look | None) -> None:
        nonlocal last
        if look is None:
            if last is None:
                last = ()
                click.echo(f"lldscope: waiting for {follower.path} to appear.", err=True)
            return
        now = tuple(look.state[key] for key in ("verdict", "phase", "life"))
        if now != last:
            last = now
            out.print(status_line(look.state))
        for alert in look.changed:
            out.print(alert_text(alert))

    yield show


@contextlib.contextmanager
def _live() -> Iterator[Any]:
    """For people: one calm block that is redrawn in place; alarms scroll by above it."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from ..terminal import console
    from ..views import alert_text, signal_table, status_line

    with Live(console=console(), auto_refresh=False, transient=False) as live:

        def show(follower: Follower, look: Look | None) -> None:
            if look is None or follower.run is None:
                live.update(Text(f"waiting for {follower.path} to appear", "dim"), refresh=True)
                return
            for alert in look.changed:
                live.console.print(alert_text(alert))
            block = Group(signal_table(follower.run), status_line(look.state))
            live.update(block, refresh=True)

        yield show
