"""`lldscope upload`: send what recorders on this machine have left to their object store."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--follow",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Send one folder of the spool until its recorders have ended. A recorder starts this.",
)
def upload(follow: Path | None) -> None:
    """Send what recorders on this machine have left to their object store.

    A run that is recorded to an address, such as s3://bucket/run, is sealed here first, in
    LLDSCOPE_SPOOL or ~/.local/state/lldscope/spool. Where the machine was switched off, or the
    store did not answer to the end, this sends the rest. Exit code 1 if something still waits.
    """
    from ..core.errors import LldscopeError
    from ..recording.spool import sending, spool_root
    from ..recording.upload import Uploader

    if follow is not None:
        Uploader(follow).follow()
        return
    waits = False
    for folder in sorted(p for p in spool_root().glob("*") if p.is_dir()):
        with sending(folder) as free:
            if not free:
                click.echo(f"lldscope: {folder} is being sent by another process.", err=True)
                continue
            uploader = Uploader(folder)
            try:
                waits |= not uploader.finish()
            except LldscopeError as error:
                click.echo(f"lldscope: {error} Parts wait in {folder}.", err=True)
                waits = True
            for path, why in uploader.refused.items():
                click.echo(f"lldscope: {path} is not sent: {why}.", err=True)
    if waits:
        raise SystemExit(1)
