"""`lldscope demo`: everything on one machine: two trainings, the dashboard, the alarms.

Trains the built-in tiny policy twice from the same warm start and seed, side by side in two
processes: as it goes wrong, and cured. Everything shown is trained and recorded while one watches.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ..core.errors import LldscopeError
from ..core.listening import user_token
from . import demo_processes as processes
from .demo_processes import Arm

INTRO = """\
Training a tiny search agent twice, from the same warm start and seed:
  grpo   GRPO at a learning rate that is too high: its correct responses lose likelihood first
  cured  the same with LLDS (action gate) and a third of the learning rate
LLDS alone is not enough at this learning rate; lowering it does most. Another processor rounds
differently, so your curves differ in detail; docs/research/study.md counts what twenty runs did."""


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
@click.option("--stay/--exit", default=True, help="Keep the dashboard up after training.")
def demo(overrides: tuple[str, ...], root: Path, port: int, dash: bool, stay: bool) -> None:
    """Train a tiny policy twice, without LLDS (it collapses) and with it, live in the dashboard.

    Takes a few minutes on two cores, without a GPU or network. KEY=VALUE settings go to both
    trainings, as for `lldscope train`. Starting again makes new runs beside the old ones.
    """
    processes.check_installed(dash=dash)
    if dash:
        processes.check_port_free(port)
    home = processes.make_folder(root)
    click.echo(INTRO, err=True)
    with contextlib.ExitStack() as children:
        arms = [
            children.enter_context(processes.run_training(home, name, overrides))
            for name in processes.ARMS
        ]
        if dash:
            dashboard = children.enter_context(processes.run_dashboard(root, port, home))
            token = quote(os.environ.get("LLDSCOPE_TOKEN") or user_token())
            click.echo(f"\nDashboard: http://127.0.0.1:{port}/?token={token}", err=True)
        click.echo(f"Runs:      {home}\n", err=True)
        _follow(arms)
        _summary(arms)
        if dash and stay and dashboard.poll() is None:
            click.echo("\nThe dashboard stays up; Ctrl-C ends it.", err=True)
            while dashboard.poll() is None:
                time.sleep(1.0)
        served = not dash or dashboard.poll() is None
    if any(arm.process.returncode for arm in arms):
        raise LldscopeError(f"A training failed; the logs are in {home}.")
    if not served:
        log = home / processes.DASHBOARD_LOG
        raise LldscopeError(f"The dashboard ended; the log is {log}: {_last_line(log)}")


# -- display --------------------------------------------------------------------------------------


def _follow(arms: list[Arm]) -> None:
    """Show both trainings until they have ended, each alarm as it is raised."""
    from ..core.terminal import console
    from .views import alert_text

    out = console(stderr=True)
    with _live(out) if sys.stderr.isatty() else contextlib.nullcontext(_lines()) as show:
        is_over = False
        while not is_over:
            # Before refreshing, so that the last rows are read.
            is_over = not any(arm.running for arm in arms)
            for arm in arms:
                for alert in arm.refresh():
                    out.print(f"{arm.name:10}", alert_text(out, alert))
            show(arms)
            if not is_over:
                time.sleep(2.0)


def _lines() -> Any:
    """For a log: a line every 20 steps."""
    last: dict[str, int] = {}

    def show(arms: list[Arm]) -> None:
        for arm in arms:
            step = arm.update.state.last_step if arm.update else None
            if step is not None and step // 20 > last.get(arm.name, -1):
                last[arm.name] = step // 20
                click.echo(f"{arm.name:10} {_status(arm).plain}", err=True)

    return show


@contextlib.contextmanager
def _live(out: Any) -> Iterator[Any]:
    """For people: both trainings in one block, redrawn in place, alarms scrolling by above."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from .views import signal_table

    with Live(console=out, auto_refresh=False) as live:

        def show(arms: list[Arm]) -> None:
            parts: list[Any] = []
            for arm in arms:
                parts.append(Text.assemble((f"{arm.name}  ", "bold"), _status(arm)))
                if arm.update and arm.follower.run is not None:
                    parts.append(signal_table(arm.follower.run))
            live.update(Group(*parts), refresh=True)

        yield show


def _status(arm: Arm) -> Any:
    from rich.text import Text

    from .views import status_line

    if arm.update is None:
        return Text("starting" if arm.running else f"failed; see {arm.log}", "dim")
    return status_line(arm.update.state)


def _last_line(log: Path) -> str:
    """The last line a child wrote: where something failed, it says why."""
    from ..core.terminal import plain

    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return plain(lines[-1]) if lines else "nothing"


def _summary(arms: list[Arm]) -> None:
    """Best and final reward of both, and when the first alarm came."""
    from ..core.numbers import short

    for arm in arms:
        run = arm.follower.run
        if run is None or arm.update is None or arm.update.state.last_step is None:
            click.echo(f"{arm.name:10} recorded no step: {_last_line(arm.log)}", err=True)
            continue
        state, e = arm.update.state, run.assess().evidence
        best, last = (short(float(v[-1]), 2) for v in (e.reward_peak, e.reward))
        steps = [a.step or 0 for a in state.alerts if a.severity != "info"]
        first = f"first alarm at step {min(steps)}" if steps else "no alarm"
        click.echo(
            f"{arm.name:10} reward (ten-step mean) best {best}, at the end {last}; {first}; "
            f"{state.sign.word}",
            err=True,
        )
