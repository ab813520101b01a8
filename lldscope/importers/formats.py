"""What an importer is: it recognizes a file of another trainer, and reads it.

A source names foreign metrics as the file does; `mapping` says which of our signals they are, and
`build` writes them. A source never raises for bad content: it counts what it passes over in its
`Findings` and goes on, as far as the file goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from .rows import sample
from .source import Findings, Rows, Scalars


@dataclass
class Candidate:
    """A file that sources are asked about: its first bytes, and its first rows if it has any."""

    path: Path
    head: bytes
    columns: Mapping[str, str] = field(default_factory=dict)  # as in ImportRequest

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        return sample(self.path)


class Source(Protocol):
    """One format: its name for `--format`, and what it is, for people."""

    name: str
    description: str

    def looks_like(self, file: Candidate, /) -> bool:
        """Whether the file is of this format. Cheap, and strict enough that no two sources claim
        one file; the last ones may be asked only about what no other claims."""
        ...

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars | Rows]:
        """All that the paths of one run hold, in the order in which it was written."""
        ...


# Module of this package → its classes of sources; the first that claims a file reads it. Those of
# means come before that of rows, because rows are assigned to the attempts that the means show.
_SOURCES: dict[str, tuple[str, ...]] = {
    "tensorboard": ("TensorBoard",),
    "wandb_offline": ("WandbOffline",),
    "sqlite": ("MlflowDatabase", "Trackio"),
    "metrics": ("Metrics",),
    "console": ("TrlConsole", "Console"),
    "rollouts": ("RolloutRows",),
}


def sources() -> list[Source]:
    """All formats."""
    return [
        getattr(import_module(f".{module}", __package__), name)()
        for module, names in _SOURCES.items()
        for name in names
    ]
