"""The metrics of other trainers: the rows of atlas.toml, which explains its own terms."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Metric:
    """One name of one trainer's log."""

    key: str
    trainer: str
    source: str  # trainer and version, or date of the source
    how: str
    date: str
    files: str
    quantity: str
    over: str = ""
    unit: str = ""
    signal: str | None = None
    factor: float = 1.0
    differs: str | None = None
    caution: str | None = None

    @property
    def bare(self) -> str:
        """The key without the prefixes that Hugging Face's loggers add."""
        return self.key.removeprefix("train/")


@cache
def metrics() -> tuple[Metric, ...]:
    """All metrics. If several metrics of a trainer mean the same signal, the first one represents
    it."""
    atlas = tomllib.loads(files(__package__).joinpath("atlas.toml").read_text("utf-8"))
    return tuple(
        Metric(
            source=source, quantity=row.pop("is"),
            **{name: section[name] for name in ("trainer", "date", "files")},
            **({"how": "read" if row.pop("read", False) else section["how"]} | row),
        )
        for source, section in atlas.items()
        for row in section["metrics"]
    )


def trainers() -> list[str]:
    return list(dict.fromkeys(m.trainer for m in metrics()))


def of_trainer(trainer: str) -> list[Metric]:
    return [m for m in metrics() if m.trainer == trainer]
