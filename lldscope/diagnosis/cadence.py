"""How often a log has a row: windows and waiting times are said in steps and counted in rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEWEST = 3  # rows that anything of several steps takes, however seldom a row is written


@dataclass(frozen=True)
class Cadence:
    """`stride` steps of training lie between two rows of the log."""

    stride: int = 1

    @classmethod
    def of(cls, step: NDArray[np.int64]) -> Cadence:
        """The smaller of the first two differences of `step`: what the third row has settled, a
        later one does not change, so that a live answer and a replayed one are the same."""
        first = np.diff(step[:3])
        return cls(max(int(first.min()), 1) if len(first) else 1)

    def rows(self, steps: int, fewest: int = FEWEST) -> int:
        """The rows that so many steps take; `fewest` of them, or `steps`, where that is less."""
        return max(-(-steps // self.stride), min(steps, fewest))

    def spans(self, steps: int) -> int:
        """The steps that `rows(steps)` take, to be named in messages."""
        return self.rows(steps) * self.stride
