"""`lldscope dash`: the command that serves the dashboard; its help imports nothing heavy."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from lldscope.cli.shared import NO_RUNS, RunPath, here
from lldscope.core.errors import LldscopeError
from lldscope.core.listening import user_token


@click.command()
@click.argument("root", required=False, type=RunPath())
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve on.")
@click.option("--port", default=8050, show_default=True, help="Port; 0 picks a free one.")
@click.option(
    "--token",
    envvar="LLDSCOPE_TOKEN",
    help="Token that every visitor must show (or LLDSCOPE_TOKEN, which `ps` does not show). By "
    "default one is generated once for your account.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Require no token: every account on this machine can read the runs.",
)
@click.option("--prefix", default="", metavar="PATH", help="The path at which a proxy has it.")
def dash(
    root: Path | None, host: str, port: int, token: str | None, no_token: bool, prefix: str
) -> None:
    """Serve the dashboard for the runs under ROOT (default: runs), a folder or an address such as
    s3://bucket/runs. Open the address that it prints: the token in it is needed once."""
    if missing := [name for name in ("dash", "plotly", "waitress") if find_spec(name) is None]:
        raise LldscopeError(
            f"The dashboard needs {', '.join(missing)}: pip install 'lldscope[dash]'"
        )
    try:
        from lldscope.runs import find_runs

        from .server import serve

        place = here(root)
        if isinstance(place, Path) and place.is_dir() and not find_runs(place):
            click.echo(f"No runs under {place} yet; they appear here. {NO_RUNS}", err=True)
        token = None if no_token else user_token() if token is None else token
        serve(place, host, port, token, prefix.rstrip("/"))
    except KeyboardInterrupt:
        pass
    # waitress returns when it is interrupted; threads that are in the middle of reading a run would
    # end an orderly exit with an abort
    sys.stderr.flush()
    os._exit(130)
