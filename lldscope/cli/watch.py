"""`lldscope watch RUN`: follow a live run until it ends, a time limit, or an alarm."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.terminal import console
from ..storage.json_files import to_json
from .check import exit_code
from .shared import RunPath, arl_option, fail_on_option, rules_option, warn_of_damage

if TYPE_CHECKING:
    from rich.console import Console

    from ..monitor.follow import Follower, RunUpdate
    from ..monitor.health import RunState

Show = Callable[["Follower", "RunUpdate | None"], None]

STATUS = ("schema", "run", "id", "path", "verdict", "evidence", "phase", "last_step", "life",
          "over", "reason", "damaged", "dropped")


@click.command()
@click.argument("run", type=RunPath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, on every change.")
@click.option(
    "--notify",
    "addresses",
    multiple=True,
    metavar="URL",
    envvar="LLDSCOPE_NOTIFY",
    help="Send alarms to this address: a webhook or a service of apprise. Repeatable. Addresses "
    "in $LLDSCOPE_NOTIFY, separated by spaces, are hidden from `ps`; the option overrides them.",
)
@click.option(
    "--repeat",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Send an alarm again at this interval while it fires. [default: once]",
)
@click.option("--on-alert", metavar="CMD", help="Run CMD with the alarm as JSON on stdin.")
@click.option(
    "--until",
    type=click.Choice(["end", "firing"]),
    default="end",
    help="firing: stop at the first alarm at least as severe as --fail-on.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=120.0,
    metavar="SECONDS",
    help="Keep watching this long after the run failed or was stopped: it may be resumed.",
)
@click.option(
    "--dashboard-url",
    metavar="URL",
    envvar="LLDSCOPE_DASHBOARD_URL",
    help="Address of the dashboard, or of the run's page in it: alarms then carry a link.",
)
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop after this long."
)
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=2.0, metavar="SECONDS",
    help="Time between checks.",
)
@arl_option()
@rules_option
@fail_on_option
def watch(
    run: Path, as_json: bool, addresses: tuple[str, ...], repeat: float | None,
    on_alert: str | None, until: str, grace: float,
    dashboard_url: str | None, timeout: float | None, interval: float, arl: float | None,
    rules: Path | None, fail_on: str,
) -> None:
    """Follow RUN, which need not exist yet, until it ends.

    On a terminal: a status block with sparklines; otherwise a line per change. Alarms of severity
    info are shown but not sent. Exit codes are those of check; 130 after Ctrl-C.
    """
    from ..diagnosis.registry import STALLED
    from ..monitor.follow import Follower
    from ..monitor.notify import Notifier
    from ..user_rules.user_rules import all_rules

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    follower = Follower(run, arl, all_rules(rules), dashboard_url)
    state: RunState | None = None
    parts: set[str] = set()
    out = console()
    with ExitStack() as stack:
        notifier = stack.enter_context(Notifier(addresses, on_alert, repeat))
        show = _json_lines() if as_json else _plain_lines()
        if not as_json and out.is_terminal and not out.is_dumb_terminal:
            show = stack.enter_context(_live())
        for update in _updates(follower, interval, timeout, grace):
            show(follower, update)
            if update is None:
                continue
            state = update.state
            if not as_json:
                warn_of_damage({p: w for p, w in state.damaged.items() if p not in parts})
                parts |= state.damaged.keys()
            # Alarms that were resolved before `watch` started are shown, but not sent.
            news = [e for e in update.events if not update.first or e.alert.state == "firing"]
            notifier.send(news, state.silenced)
            # A dead run may be resumed.
            alerts = (a for a in state.firing if not (state.over and a.rule == STALLED.id))
            if until == "firing" and any(a.severity >= fail_on for a in alerts):
                break
    sys.exit(exit_code(state.verdict if state else "insufficient", fail_on))


def _updates(
    follower: Follower, interval: float, timeout: float | None, grace: float
) -> Iterator[RunUpdate | None]:
    """Updates of the run, `interval` seconds apart, until the run has ended or the time is up. A
    run that did not finish counts as ended `grace` seconds after its last row."""
    end = None if timeout is None else time.monotonic() + timeout
    given_up: float | None = None
    while True:
        update = follower.poll()
        yield update
        now = time.monotonic()
        if update is None or not update.state.over:
            given_up = None
        elif update.state.life == "finished":
            return
        elif given_up is None:
            age = update.state.last_row_age_seconds if update.first else None
            given_up = now + grace - min(age or 0.0, grace)
        wait = min(interval, *(t - now for t in (end, given_up) if t is not None), interval)
        if wait <= 0:
            return
        time.sleep(wait)


# -- what is shown ---------------------------------------------------------------------------------


def _json_lines() -> Show:
    """Print a line of type `waiting`, `alert` or `status` when it differs from the line before."""
    from ..monitor.health import CHECK_SCHEMA

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
        # A reason may count seconds.
        compared = now | {"reason": re.sub(r"\d+ s\b", "", str(now["reason"]))}
        if compared != last:
            last = compared
            kind = "waiting" if update is None else "status"
            click.echo(to_json({"type": kind, "time": time.time(), **now}))
        sys.stdout.flush()

    return show


def _plain_lines() -> Show:
    """For logs: print a line for each alarm, and when verdict, phase or life change."""
    from .views import status_line

    out = console()
    last: tuple[Any, ...] | None = None
    over = False

    def show(follower: Follower, update: RunUpdate | None) -> None:
        nonlocal last, over
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
                again = over and not update.state.over
                out.print("resumed" if again else "", status_line(update.state), sep="  " * again)
        over = update is not None and update.state.over
        _print_alerts(out, update)
        sys.stdout.flush()

    return show


@contextmanager
def _live() -> Iterator[Show]:
    """For people: redraw one block in place; alarms scroll by above it."""
    from rich.live import Live
    from rich.text import Text

    from .views import live_block

    with Live(console=console(live=True), auto_refresh=False) as screen:

        def show(follower: Follower, update: RunUpdate | None) -> None:
            _print_alerts(screen.console, update)
            if update is None or follower.run is None:
                screen.update(Text(_waiting(follower), "dim"), refresh=True)
            else:
                width = screen.console.width
                screen.update(live_block(follower.run, update.state, width), refresh=True)

        yield show


def _print_alerts(out: Console, update: RunUpdate | None) -> None:
    from .views import alert_text

    for event in update.events if update else ():
        out.print(alert_text(out, event.alert, event.state.silenced, event.state.counted[:-1]))


def _waiting(follower: Follower) -> str:
    return f"lldscope: waiting for {follower.path} to appear. {follower.waiting}"
