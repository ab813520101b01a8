"""The command `lldscope`: parse, call one library function, print.

Data goes to stdout, messages to stderr. Commands load when they are called; those of the trainer
and the dashboard come in by entry point (group `lldscope.commands`), so that nothing here imports
them. Exit codes of `check` and `watch` are in `lldscope.cli.check`.
"""

from __future__ import annotations

import codecs
import os
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

import click

from ..core.errors import LldscopeError, interrupted, missing_package
from ..core.terminal import plain
from ..core.version import __version__

if TYPE_CHECKING:
    from ..diagnosis.account import Onset
    from ..runs import Run

# Name → one line of help, so that `lldscope --help` imports no command; grouped as it shows them.
GROUPS = {
    "See and be alerted": {
        "runs": "List runs: verdict, phase, last step, alarms.",
        "check": "Show the state of a run; the exit code tells scripts.",
        "watch": "Follow a live run and report its alarms.",
        "acknowledge": "Stop notifications of an alarm that you know about.",
        "annotate": "Name a run, tag it, or add a note.",
        "dash": "Serve the dashboard on this machine.",
    },
    "Find out what happened": {
        "diagnose": "Find what is wrong with a run, from any trainer's log.",
        "report": "Write the post-mortem of a run: HTML, Markdown or JSON.",
        "compare": "Compare runs side by side: verdicts, phases, alarms, signals.",
        "diff": "Find the first step at which one run departs from another.",
        "lint": "Compare the rows of a run with its configuration.",
        "blame": "Repeat one recorded update, with one thing changed each time.",
        "rescue": "Try changes from the last good checkpoint; continue with the best.",
        "query": "Query a run in SQL, read-only.",
        "mcp": "Serve these answers to agents (Model Context Protocol).",
    },
    "Train and record": {
        "demo": "Watch a tiny policy collapse, and its cure, in the dashboard.",
        "train": "Train with GRPO or GSPO, with or without LLDS.",
        "retriever": "Serve a corpus to search agents, in Search-R1's protocol.",
        "import": "Convert another trainer's logs into a run.",
        "upload": "Send recorded parts that have not reached their object store.",
    },
    "Files and rules of a run": {
        "export": "Write tables and signals as Parquet or CSV.",
        "schema": "Show tables and columns: type, unit, meaning.",
        "share": "Write a run as a dataset and a page to publish.",
        "compact": "Merge the files of a run.",
        "doctor": "Check the files of a run, and repair them.",
        "rules": "List the rules that raise alarms; test your own.",
        "evaluate": "Score the alarms on a bank of runs whose outcome is known.",
    },
}
COMMANDS = {name: words for group in GROUPS.values() for name, words in group.items()}
_FROM_ENTRY_POINTS = ("blame", "rescue", "train", "dash", "retriever")


class _Commands(click.Group):
    """Commands that are imported only when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        if name in _FROM_ENTRY_POINTS:
            from importlib.metadata import entry_points
            from importlib.util import find_spec

            # The metadata that setuptools leaves in a checkout lists them for any Python there.
            commands = [
                command
                for command in entry_points(group="lldscope.commands", name=name)
                if find_spec(command.module.partition(".")[0])
            ]
            if not commands:
                raise LldscopeError(
                    f"{name} needs lldscope to be installed, and this is a checkout that is not: "
                    'pip install -e ".[train,dash]"'
                )
            return commands[0].load()
        # `import` is a keyword and cannot be the name of a module.
        module = f"{name}_" if name == "import" else name
        return getattr(import_module(f".{module}", __name__), module)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


def _monitor(run: str | os.PathLike[str]) -> object:
    from pathlib import Path

    from ..monitor.follow import Monitor

    return Monitor(Path(run))


def _alarms() -> list[str]:
    from ..diagnosis.registry import RULES

    return [rule.id for rule in RULES]


def _onset(run: Run) -> Onset | None:
    return run.assess().account.onset()


@click.group(
    cls=_Commands,
    commands=dict.fromkeys(COMMANDS),  # the names, for click's suggestions
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog='Tab completion: eval "$(_LLDSCOPE_COMPLETE=bash_source lldscope)", or zsh_source, '
    "fish_source.",
)
@click.version_option(__version__, prog_name="lldscope")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Find out why a GRPO run collapses, before the reward shows it.

    A log of any trainer: lldscope diagnose LOG. A run recorded by lldscope: lldscope check RUN.
    """
    # The trainer uses these parts of the analyzer without importing them.
    ctx.obj = {"monitor": _monitor, "alarms": _alarms, "onset": _onset}


def _printable(error: object) -> str:
    """A message without control characters: it quotes names and values of runs."""
    return "\n  ".join(plain(line) for line in str(error).split("\n"))


def main() -> None:
    """Entry point: every error a user can cause is one sentence on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # As in click: an ASCII locale is one that nobody has set.
            ascii_only = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if ascii_only else None, errors="backslashreplace")
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except RuntimeError as error:
        if not interrupted(error):
            raise
        sys.exit(130)
    except LldscopeError as error:
        click.echo(f"lldscope: {_printable(error)}", err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        click.echo(f"lldscope: {missing_package(error, 'This')}", err=True)
        sys.exit(1)
    except MemoryError:
        click.echo(
            "lldscope: This process ran out of memory. Nothing is lost; "
            "give it more and try again.",
            err=True,
        )
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output has exited, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        where = f" {_printable(error.filename)}:" if error.filename else ""
        click.echo(f"lldscope:{where} {error.strerror or error}.", err=True)
        sys.exit(1)
