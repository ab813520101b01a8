"""`lldscope check RUN`: the state of a run once; the exit code says which."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from .shared import RunPath, arl_option, fail_on_option, json_text, rules_option, warn_of_damage

if TYPE_CHECKING:
    from pathlib import Path

    from ..monitor.health import RunState
    from ..storage.cache import Cache

MOST_ANSWERS = 200  # of runs that are over, which are kept

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
    from ..core.errors import LldscopeError
    from ..monitor.run_index import fingerprint
    from ..storage.url import Url

    form = "json" if as_json else exit_style
    files = ""
    if not isinstance(run, Url) and arl is None and rules is None:
        files = fingerprint(run, every=True, read=True)  # before it is judged
    key = repr((os.path.abspath(run), str(run), form, fail_on, form == "lldscope" and _screen()))
    try:
        answer = _cache().load(key, lambda _, entry: _as_of_now(entry, files)) if files else None
        if answer is None:
            answer = _judge(run, arl, rules, form, fail_on)
            if files and answer["lasts"]:
                _cache().store(key, answer | {"files": files}, lambda _: None)
    except (LldscopeError, OSError) as error:
        if exit_style != "nagios":
            raise
        click.echo(f"LLDSCOPE UNKNOWN - {_clean(str(error))}")
        sys.exit(NAGIOS["insufficient"])
    click.echo(answer["text"], nl=False)
    warn_of_damage(answer["damaged"], answer["dropped"])
    sys.exit(answer["code"])


def _judge(
    run: Path, arl: float | None, rules: Path | None, form: str, fail_on: str
) -> dict[str, Any]:
    """What to print of a run and with which code to exit, and whether that lasts: time alone
    changes nothing of it but the age of the last row."""
    from ..core.terminal import age
    from ..monitor.health import check as check_run
    from ..query.signal_cache import user_cache
    from ..runs import open_run
    from ..user_rules.user_rules import all_rules

    reader = open_run(run, cache=user_cache())
    state = check_run(reader, arl, all_rules(rules))
    code = exit_code(state.verdict, fail_on, NAGIOS if form == "nagios" else EXIT)
    if form == "json":
        text = json_text(state.to_dict())
    elif form == "nagios":
        text = f"{nagios_line(state, code)}\n"
    else:
        from .views import state_text

        text = state_text(reader, state)
    lasts = state.over and state.life != "stalled" and not state.damaged and not state.silenced
    seconds = state.last_row_age_seconds
    return {
        "text": text, "code": code, "damaged": state.damaged, "dropped": state.dropped,
        "lasts": lasts, "age": age(seconds), "form": form,
        "time": None if seconds is None else time.time() - seconds,
    }


def _as_of_now(entry: dict[str, Any], files: str) -> dict[str, Any] | None:
    """An answer of these files, if it is still right."""
    import json

    from ..core.terminal import age

    seconds = None if entry["time"] is None else time.time() - entry["time"]
    if entry["files"] != files or (entry["form"] == "lldscope" and entry["age"] != age(seconds)):
        return None
    if entry["form"] != "json":
        return entry
    state = json.loads(entry["text"]) | {"last_row_age_seconds": seconds}
    return entry | {"text": json_text(state)}


def _cache() -> Cache:
    from ..storage.cache import Cache, cache_dir

    return Cache(cache_dir() / "answers", MOST_ANSWERS)


def _screen() -> tuple[Any, ...]:
    """What rich asks of a terminal, without rich."""
    names = ("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS")
    width = shutil.get_terminal_size() if sys.stdout.isatty() else 0
    return width, sys.stdout.encoding, *map(os.environ.get, names)


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
    """A bar would begin performance data, a line end the long output."""
    from ..core.terminal import plain

    return plain(text).replace("|", "/")
