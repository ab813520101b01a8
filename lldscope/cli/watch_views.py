"""What `watch` shows: JSON lines for programs, plain lines for logs, a live block for people.

Each view is a context manager that yields a function (follower, update) → None.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..monitor.follow import Follower, RunUpdate

Show = Callable[["Follower", "RunUpdate | None"], None]

STATUS = ("schema", "run", "id", "path", "verdict", "evidence", "phase", "last_step", "life",
          "over", "reason", "damaged", "dropped")  # fmt: skip


@contextlib.contextmanager
def json_lines() -> Iterator[Show]:
    """A line of type `waiting`, `alert` or `status` whenever it differs from the one before."""
    from ..monitor.health import CHECK_SCHEMA
    from ..storage.json_files import to_json

    last: dict[str, Any] | None = None

    def show(follower: Follower, update: RunUpdate | None) -> None:
        nonlocal last
        for event in update.events if update else ():
            click.echo(to_json(event.to_dict()))
        if update is None:
            now = {"schema": CHECK_SCHEMA, "path": str(follower.path), "reason": follower.waiting}
        else:
            state = update.state.to_dict()
            now = {key: state[key] for key in STATUS}
        if now != last:
            last = now
            kind = "waiting" if update is None else "status"
            click.echo(to_json({"type": kind, "time": time.time(), **now}))
        sys.stdout.flush()

    yield show


@contextlib.contextmanager
def plain_lines() -> Iterator[Show]:
    """For logs: a line when verdict, phase or life change, and for each alarm."""
    from ..core.terminal import console
    from .views import alert_text, status_line

    out = console()
    last: tuple[Any, ...] | None = None

    def show(follower: Follower, update: RunUpdate | None) -> None:
        nonlocal last
        now = (
            (follower.waiting,)
            if update is None
            else (update.state.verdict, update.state.phase, update.state.life)
        )
        if now != last:
            last = now
            if update is None:
                click.echo(_waiting(follower), err=True)
            else:
                out.print(status_line(update.state))
        for event in update.events if update else ():
            out.print(alert_text(event.alert))
        sys.stdout.flush()

    yield show


@contextlib.contextmanager
def live() -> Iterator[Show]:
    """For people: one block that is redrawn in place; alarms scroll by above it."""
    from rich.live import Live
    from rich.text import Text

    from ..core.terminal import console
    from .views import alert_text, live_block

    with Live(console=console(live=True), auto_refresh=False) as screen:

        def show(follower: Follower, update: RunUpdate | None) -> None:
            for event in update.events if update else ():
                screen.console.print(alert_text(event.alert))
            if update is None or follower.run is None:
                screen.update(Text(_waiting(follower), "dim"), refresh=True)
            else:
                width = screen.console.width
                screen.update(live_block(follower.run, update.state, width), refresh=True)

        yield show


def _waiting(follower: Follower) -> str:
    return f"lldscope: waiting for {follower.path} to appear. {follower.waiting}"
