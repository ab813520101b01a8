"""`lldscope watch RUN`: follow a live run until it ends, a time limit, or an alarm."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .check import exit_code
from .shared import RunPath, arl_option, exit_options, rules_option, warn_of_damage

if TYPE_CHECKING:
    from ..monitor.follow import Follower, RunUpdate
    from ..monitor.health import RunState


@click.command()
@click.argument("run", type=RunPath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, on every change.")
@click.option(
    "--notify",
    "addresses",
    multiple=True,
    metavar="URL",
    envvar="LLDSCOPE_NOTIFY",
    help="Tell this address of alarms; may be given again. http(s) gets Alertmanager's webhook "
    "JSON, the rest goes through apprise. Better named in $LLDSCOPE_NOTIFY (blanks between), which "
    "`ps` does not show; the option wins.",
)
@click.option(
    "--repeat",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Tell addresses again of an alarm that still fires after this long. [default: never]",
)
@click.option("--on-alert", metavar="CMD", help="Run CMD with the alarm as JSON on its stdin.")
@click.option(
    "--mirror",
    "mirrors",
    multiple=True,
    metavar="TOOL:PLACE",
    help="Put phases and alarms into tensorboard:DIR, wandb:PROJECT[/RUN_ID] or trackio:PROJECT; "
    "may be given again.",
)
@click.option(
    "--until",
    type=click.Choice(["end", "firing"]),
    default="end",
    show_default=True,
    help="firing: stop at the first alarm, of the severity of --fail-on or worse.",
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
@rules_option
@exit_options
def watch(
    run: Path,
    as_json: bool,
    addresses: tuple[str, ...],
    repeat: float | None,
    on_alert: str | None,
    mirrors: tuple[str, ...],
    until: str,
    timeout: float | None,
    interval: float,
    arl: float | None,
    rules: Path | None,
    fail_on: str,
    exit_style: str,
) -> None:
    """Follow RUN, which need not exist yet, until it ends.

    On a terminal: a status block with sparklines; otherwise a line per change. Alarms of severity
    info are shown, but not sent to anybody. Exit codes are those of check; Ctrl-C is 130.
    """
    from ..alarms.user_rules import all_rules
    from ..monitor.export import MetricsExporter
    from ..monitor.follow import Follower
    from ..monitor.notify import Notifier
    from .watch_views import json_lines

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    follower = Follower(run, arl, all_rules(rules))
    state: RunState | None = None
    warned: set[str] = set()
    with ExitStack() as stack:
        notifier = stack.enter_context(Notifier(addresses, on_alert, repeat))
        exporters = [stack.enter_context(MetricsExporter(address)) for address in mirrors]
        show = stack.enter_context(json_lines() if as_json else _for_people())
        for update in _updates(follower, interval, timeout):
            show(follower, update)
            if update is None:
                continue
            state = update.state
            if not as_json:
                warn_of_damage({p: w for p, w in state.damaged.items() if p not in warned})
                warned |= state.damaged.keys()
            # Alarms that were resolved before `watch` started are shown, but not sent.
            news = [e for e in update.events if not update.first or e.alert.state == "firing"]
            notifier.send(news)
            for exporter in exporters:
                exporter.send(follower, update, news)
            if until == "firing" and _serious(state, fail_on):
                break
    sys.exit(exit_code(state.verdict if state else "insufficient", fail_on, exit_style))


def _for_people() -> Any:
    from ..core.terminal import console
    from .watch_views import live, plain_lines

    out = console()
    return live() if out.is_terminal and not out.is_dumb_terminal else plain_lines()


def _updates(
    follower: Follower, interval: float, timeout: float | None
) -> Iterator[RunUpdate | None]:
    """Updates of the run, `interval` seconds apart, until it has ended or the time is up."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        update = follower.look()
        yield update
        if update is not None and update.state.over:
            return
        wait = interval if end is None else min(interval, end - time.monotonic())
        if wait <= 0:
            return
        time.sleep(wait)


def _serious(state: RunState, least: str) -> bool:
    from ..alarms.rule import Severity

    return any(Severity(alert.severity) >= least for alert in state.firing)
