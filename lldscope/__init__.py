"""lldscope: see Lazy Likelihood Displacement before it kills a GRPO run.

with lldscope.Recorder("runs/mine") as recorder: ...     record, from any trainer
run = lldscope.open_run("runs/mine")                      read: signals, phases, alerts, SQL
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .core.version import __version__

if TYPE_CHECKING:
    from .recording.recorder import NullRecorder, Recorder
    from .runs import Run, open_run

__all__ = ["NullRecorder", "Recorder", "Run", "__version__", "open_run"]

_HOME = {
    "NullRecorder": "recording.recorder",
    "Recorder": "recording.recorder",
    "Run": "runs",
    "open_run": "runs",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that `lldscope --help` loads nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'lldscope' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__]
