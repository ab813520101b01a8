"""Which of our signals a foreign metric is; one line a name, whatever logger carried it.

A metric that estimates something else than our signal of that name does is not renamed: it keeps
its own name, and `KEPT` says why. Where it is the same quantity by another estimator, `estimator`
says which; it stands in the table `scalars` and on every face that shows the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..schema import SIGNALS


@dataclass(frozen=True)
class Meant:
    """A signal, and how the foreign number differs from what lldscope itself would measure."""

    signal: str
    estimator: str | None = None
    factor: float = 1.0  # foreign unit → ours


def meaning(name: str) -> Meant | None:
    """The signal that a foreign name stands for; None where it keeps its own name."""
    bare = name.removeprefix("train/")
    return MEANT.get(name) or MEANT.get(bare) or (Meant(bare) if bare in _SIGNALS else None)


def why_kept(name: str) -> str | None:
    """Why a metric that looks like a signal is not taken for it."""
    return KEPT.get(name) or KEPT.get(name.removeprefix("train/"))


_SIGNALS = frozenset(SIGNALS.names) - {"step", "time", "tokens_seen"}

MEANT: dict[str, Meant] = {}
KEPT: dict[str, str] = {}
