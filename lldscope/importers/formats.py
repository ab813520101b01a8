"""What an importer is: it recognizes a file of another trainer, and reads it.

A source names foreign metrics as the file does; `mapping` says which of our signals they are, and
`build` writes them. A source never raises for bad content: it counts what it passes over in its
`Findings` and goes on, as far as the file goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from .console import Console, TrlConsole
from .metrics import Metrics
from .rollouts import RolloutRows
from .rows import Candidate
from .source import Findings, Rows, Scalars
from .sqlite import MlflowDatabase, Trackio
from .tensorboard import TensorBoard
from .wandb_offline import WandbOffline


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


def sources() -> list[Source]:
    """All formats; the first that claims a file reads it. Those of means come before that of rows,
    because rows are assigned to the attempts that the means show."""
    return [
        TensorBoard(), WandbOffline(), MlflowDatabase(), Trackio(), Metrics(), TrlConsole(),
        Console(), RolloutRows(),
    ]
