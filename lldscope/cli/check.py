"""`lldscope check RUN`: the state of a run once; the exit code says which."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from ..core.errors import LldscopeError
from ..core.terminal import plain
from .shared import RunPath, arl_option, fail_on_option, print_json, rules_option, warn_of_damage

if TYPE_CHECKING:
    from pathlib import Path

    from ..monitor.health import RunState

# 1 is an internal or I/O error, 2 a usage error.
EXIT = {"healthy": 0, "warning": 10, "critical": 11, "stalled": 12, "insufficient": 13}
NAGIOS = {"healthy": 0, "warning": 1, "critical": 2, "stalled": 2, "insufficient": 3}


def exit_code(verdict: str, fail_on: str, codes: Mapping[str, int] = EXIT) -> int:
    """The exit code for a verdict; warnings pass with `--fail-on critical`."""
    return 0 if verdict == "warning" and fail_on == "critical" else codes[verdict]


@click.command()
@click.argument("run", type=RunPath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@arl_option()
@rules_option
@fail_on_option
@click.option(
    "--exit-style",
    type=click.Choice(["lldscope", "nagios"]),
    default="lldscope",
    help="nagios: 0 OK, 1 warning, 2 critical or stalled, 3 unknown.",
)
def check(
    run: Path, as_json: bool, arl: float | None, rules: Path | None, fail_on: str, exit_style: str
) -> None:
    """Show the state of RUN: verdict, cause, what to do, signals, alarms.

    Exit code: 0 healthy, 10 warning, 11 critical, 12 stalled or failed, 13 too little to judge;
    1 internal or I/O error, 2 wrong usage. With --exit-style nagios one line, and 3 for every
    error.
    """
    from ..monitor.health import check as check_run
    from ..query.signal_cache import user_cache
    from ..runs import open_run
    from ..user_rules.user_rules import all_rules

    try:
        reader = open_run(run, cache=user_cache())
        state = check_run(reader, arl, all_rules(rules))
    except (LldscopeError, OSError) as error:
        if exit_style != "nagios":
            raise
        click.echo(f"LLDSCOPE UNKNOWN - {_clean(str(error))}")
        sys.exit(NAGIOS["insufficient"])
    code = exit_code(state.verdict, fail_on, NAGIOS if exit_style == "nagios" else EXIT)
    if as_json:
        print_json(state.to_dict())
    elif exit_style == "nagios":
        click.echo(nagios_line(state, code))
    else:
        from .views import show_state

        show_state(reader, state)
    warn_of_damage(state.damaged, state.dropped)
    sys.exit(code)


def nagios_line(state: RunState, code: int) -> str:
    """One line as a monitoring plug-in prints it: service, state, text."""
    from .views import phase_words

    firing = [alert for alert in state.firing if alert.severity != "info"]
    worst = f": {firing[0].rule}: {firing[0].message}" if firing else ""
    phase = phase_words(state.phase)
    last = f"{state.counted[:-1]} {state.last_step}"
    summary = f"{state.sign.word}{phase and f', {phase}'}{worst}, {last}"
    word = ("OK", "WARNING", "CRITICAL", "UNKNOWN")[code]
    return f"LLDSCOPE {word} - {_clean(state.run)} {_clean(summary)}"


def _clean(text: str) -> str:
    """One line without bars: Nagios takes text after a bar for performance data."""
    return plain(text).replace("|", "/")
