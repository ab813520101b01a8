"""What a chart is asked for: the run as it sees it, and what the reader has chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lldscope.diagnosis.assess import PhaseSpan
from lldscope.monitor.alerts import AnyAlert


@dataclass(frozen=True)
class View:
    """What the reader has chosen: x axis, trailing mean in steps, the zoomed range of x, where
    runs of a group are one line the group of each run, and which charts have a logarithmic y axis
    or one that leaves out the outermost 1 %.

    The range is in steps, tokens or seconds: the unit of an axis changes as a run grows.
    """

    by: str = "step"
    window: int = 10
    zoom: tuple[float, float] | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    clip: tuple[str, ...] = ()

    @property
    def key(self) -> list[Any]:
        """The view as plain values, to compare and to send."""
        groups = [dict(self.groups)] if self.groups else []
        axes = [[*self.log], [*self.clip]] if self.log or self.clip else []
        return [self.by, self.window, list(self.zoom or ()), *groups, *axes]


@dataclass(frozen=True)
class Subject:
    """A run as a chart sees it: a table of signals and what is marked on it."""

    name: str  # its place under the root
    table: pd.DataFrame
    spans: Sequence[PhaseSpan]
    alerts: Sequence[AnyAlert]
    events: list[dict[str, Any]]
    arl: float
    title: str = ""
    trend: str = ""  # of the reward, in a word

    @property
    def called(self) -> str:
        """What people call the run."""
        return self.title or self.name
