"""`lldscope check RUN`: the state of a run once; the exit code says which."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .shared import RunPath, arl_option, exit_options, rules_option, warn_of_damage

# 1 is an internal or I/O error, 2 a usage error.
EXIT = {"healthy": 0, "warning": 10, "critical": 11, "stalled": 12, "insufficient": 13}
NAGIOS = {"healthy": 0, "warning": 1, "critical": 2, "stalled": 2, "insufficient": 3}


def exit_code(verdict: str, fail_on: str, style: str) -> int:
    """The exit code for a verdict; warnings pass with `--fail-on critical`."""
    if verdict == "warning" and fail_on == "critical":
        return 0
    return (NAGIOS if style == "nagios" else EXIT)[verdict]


@click.command()
@click.argument("run", type=RunPath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@arl_option
@rules_option
@exit_options
def check(
    run: Path, as_json: bool, arl: float | None, rules: Path | None, fail_on: str, exit_style: str
) -> None:
    """Look at RUN once.

    Exit code: 0 healthy, 10 warning, 11 critical, 12 stalled or failed, 13 not enough data;
    1 internal or I/O error, 2 wrong usage. With --exit-style nagios one line with performance data,
    and 3 whatever is wrong with the question.
    """
    from ..alarms.user_rules import all_rules
    from ..core.errors import LldscopeError
    from ..monitor.health import check as check_run
    from ..runs import open_run
    from ..storage.json_files import to_json

    try:
        opened = open_run(run)
        state = check_run(opened, arl, all_rules(rules))
    except (LldscopeError, OSError) as error:
        if exit_style != "nagios":
            raise
        from ..monitor.nagios import unknown

        click.echo(unknown(error))
        sys.exit(NAGIOS["insufficient"])
    code = exit_code(state.verdict, fail_on, exit_style)
    if as_json:
        click.echo(to_json(state.to_dict(), indent=1))
    elif exit_style == "nagios":
        from ..monitor.nagios import line

        click.echo(line(state, opened.signals(), code))
    else:
        from .views import show_state

        show_state(opened, state)
    warn_of_damage(state.damaged, state.dropped)
    sys.exit(code)
