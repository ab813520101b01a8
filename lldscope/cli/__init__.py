"""The command `lldscope`: parse, call one library function, print.

Data goes to stdout, messages to stderr. Commands load when they are called; those of the trainer
and the dashboard come in by entry point (group `lldscope.commands`), so that nothing here imports
them. Exit codes of `check` and `watch` are in `lldscope.cli.check`.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

import click

from ..core.errors import LldscopeError, interrupted, missing_package
from ..core.version import __version__

if TYPE_CHECKING:
    from ..monitor.health import Onset
    from ..runs import Run

# Name → one line of help, so that `lldscope --help` imports no command.
COMMANDS = {
    "demo": "Train a tiny policy here, as it goes wrong and cured, in front of the live dashboard.",
    "train": "Train with GRPO or GSPO, with or without LLDS.",
    "runs": "List runs with verdict, phase and age of the last row.",
    "check": "One look at a run; the exit code tells its state.",
    "watch": "Follow a live run and report its alarms.",
    "acknowledge": "Say that an alarm is known: it is not sent again.",
    "annotate": "Name a run, tag it, or write a note.",
    "report": "Write the post-mortem of a run: HTML, Markdown or JSON.",
    "diagnose": "Any log of a training: what is wrong, what to change, what it cannot show.",
    "mcp": "Answer agents: the same questions over the Model Context Protocol.",
    "lint": "Whether a run does what its configuration says.",
    "blame": "Run one recorded update again, with one thing changed each time.",
    "rescue": "Go back to before the trouble, try changes, go on with the best.",
    "compare": "Signals, phases and alarms of runs side by side.",
    "diff": "From where on one run differs from another, and which settings differ.",
    "rules": "List the rules that raise alarms; try your own on cases and runs.",
    "dash": "Serve the dashboard on this machine.",
    "retriever": "Serve a corpus to search agents, in Search-R1's protocol.",
    "evaluate": "Judge the alarms on a bank of runs whose end is known.",
    "import": "Logs of other trainers, as a run that every command can read.",
    "export": "Write tables and signals as plain Parquet or CSV.",
    "query": "Query a run in SQL; read-only.",
    "schema": "Tables and columns: type, unit, meaning.",
    "compact": "Merge the parts of a run; delete old token rows.",
    "upload": "Send what recorders here have left to their object store.",
    "doctor": "Examine a run, and repair what can be.",
}
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

            if not (commands := entry_points(group="lldscope.commands", name=name)):
                raise LldscopeError(
                    f"{name} needs lldscope to be installed, and this is a checkout that is not: "
                    'pip install -e ".[train,dash]"'
                )
            (command,) = commands
            return command.load()
        # A module cannot be called as the keyword is.
        module = f"{name}_" if name == "import" else name
        return getattr(import_module(f".{module}", __name__), module)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _monitor(run: str | os.PathLike[str]) -> object:
    from pathlib import Path

    from ..monitor.follow import Monitor

    return Monitor(Path(run))


def _alarms() -> list[str]:
    from ..diagnosis.registry import RULES

    return [rule.id for rule in RULES]


def _onset(run: Run) -> Onset | None:
    from ..monitor.health import onset

    return onset(run)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog='Completion in bash: eval "$(_LLDSCOPE_COMPLETE=bash_source lldscope)"; zsh and fish '
    "likewise, with zsh_source and fish_source.",
)
@click.version_option(__version__, prog_name="lldscope")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """See Lazy Likelihood Displacement before it kills a GRPO run."""
    # What the trainer uses of the analyzer, which it does not import.
    ctx.obj = {"monitor": _monitor, "alarms": _alarms, "onset": _onset}


def _printable(error: object) -> str:
    """Messages quote names and values of runs, which a terminal must not obey."""
    from ..core.terminal import plain

    return "\n  ".join(plain(line) for line in str(error).split("\n"))


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Characters that the terminal's encoding lacks, as JSON escapes, so that JSON stays JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def main() -> None:
    """Entry point: every error a user can cause is one sentence on stderr and an exit code."""
    codecs.register_error("escape", _escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # As click has it: a locale of ASCII alone is one that nobody has set.
            ascii_only = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if ascii_only else None, errors="escape")
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
            "lldscope: The memory that this process may have is not enough. Nothing is lost; "
            "give it more and try again.",
            err=True,
        )
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output has exited, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        where = f" {_printable(error.filename)}" if error.filename else ""
        click.echo(f"lldscope:{where} {error.strerror or error}", err=True)
        sys.exit(1)
