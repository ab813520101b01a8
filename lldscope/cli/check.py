"""`lldscope check RUN`: one look; the exit code says what it saw."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from .shared import RunPath, warn_of_damage

# 1 is an internal or I/O error, 2 a usage error.
EXIT = {"healthy": 0, "warning": 10, "critical": 11, "stalled": 12, "insufficient": 13}
NAGIOS = {"healthy": 0, "warning": 1, "critical": 2, "stalled": 2, "insufficient": 3}


def exit_code(verdict: str, fail_on: str, style: str) -> int:
    """The exit code for a verdict; warnings pass with `--fail-on critical`."""
    if verdict == "warning" and fail_on == "critical":
        return 0
    return (NAGIOS if style == "nagios" else EXIT)[verdict]


def arl_option(function: Any) -> Any:
    return click.option(
        "--arl",
        type=click.FloatRange(min=10),
        default=None,
        help="Steps between false decay alarms, at least, on average. [default: 2000]",
    )(function)


def rules_option(function: Any) -> Any:
    return click.option(
        "--rules",
        type=click.Path(path_type=Path),
        help="A file with rules of your own; `lldscope rules test` tries them.",
    )(function)


def exit_options(function: Any) -> Any:
    """The two options that decide the exit code, for `check` and `watch`."""
    function = click.option(
        "--exit-style",
        type=click.Choice(["lldscope", "nagios"]),
        default="lldscope",
        show_default=True,
        help="nagios: 0 OK, 1 warning, 2 critical or stalled, 3 unknown.",
    )(function)
    return click.option(
        "--fail-on",
        type=click.Choice(["warning", "critical"]),
        default="warning",
        show_default=True,
        help="The mildest state that is not exit 0.",
    )(function)


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
    from ..monitor.health import check as look
    from ..runs import open_run
    from ..storage.json_files import to_json

    try:
        opened = open_run(run)
        state = look(opened, arl, all_rules(rules))
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
