"""One module per command, each named as the command; and what several of them share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click


class RunPath(click.ParamType):
    """A folder, or an address that fsspec knows, such as s3://bucket/run."""

    name = "path"

    def convert(self, value: Any, param: Any, context: Any) -> Any:
        from ..query.remote import Url, is_address

        if not isinstance(value, str):
            return value
        return Url(value) if is_address(value) else Path(value)


def warn_of_damage(damaged: Mapping[str, str], dropped: Mapping[str, int] | None = None) -> None:
    """What is wrong with the log itself goes to stderr, whatever the format of the data."""
    from ..core.terminal import plain

    for part, wrong in damaged.items():
        click.echo(f"lldscope: {plain(part)} is damaged and left out: {plain(wrong)}.", err=True)
    for what, count in (dropped or {}).items():
        click.echo(f"lldscope: the recorder dropped {count} × {plain(what)}.", err=True)
