"""`lldscope upload`: send what recorders on this machine have left to their object store."""

from __future__ import annotations

from pathlib import Path

import click

from ..core.errors import LldscopeError


@click.command()
@click.option(
    "--follow",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Send one folder of the spool until its recorder ends; recorders start this.",
)
def upload(follow: Path | None) -> None:
    """Send recorded parts that have not reached their object store yet.

    A run recorded to an address, such as s3://bucket/run, is written to LLDSCOPE_SPOOL or
    ~/.local/state/lldscope/spool first. After an outage of the machine or of the store this sends
    the rest. Exit code 1 if something is still unsent.
    """
    from ..recording.spool import SPOOL_FILE, sending, spool_root
    from ..recording.upload import Sender

    if follow is not None:
        with sending(follow) as free:
            if free:
                Sender(follow).follow()
        return
    waits = False
    paths = sorted(file.parent for file in spool_root().glob(f"*/*/{SPOOL_FILE}"))
    if not paths:
        click.echo(f"lldscope: nothing waits in {spool_root()}.", err=True)
    for path in paths:
        with sending(path) as free:
            if not free:
                click.echo(f"lldscope: {path} is being sent by another process.", err=True)
                continue
            try:
                waits |= not Sender(path).round()
            except (LldscopeError, OSError) as error:
                click.echo(f"lldscope: {error} What is sealed waits in {path}.", err=True)
                waits = True
    if waits:
        raise SystemExit(1)
