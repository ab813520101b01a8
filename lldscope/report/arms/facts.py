"""Two arms side by side, as data: `Comparison.to_dict()` is `lldscope compare --format json`.

An arm is a run, or several runs that differ in nothing but chance, such as seeds; their signals are
averaged, with the spread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...explore.settings import NOT_SET
from ..examples import shared_prefix
from ..facts import Kind, PostMortem
from ..series import AveragedSeries, Series, StepRange

LONGEST = 80  # characters of a setting's value that are shown
BEFORE = 20  # of them that are in front of a difference

# What the comparison says of each run; the rest is in the report of the run itself.
_OF_A_RUN = (
    "run", "state", "kind", "phases", "boundaries", "fall", "collapse", "reward_crash", "outline",
    "links", "look_alikes", "alarms", "damaged", "dropped", "summary",
)


@dataclass(frozen=True)
class Spread:
    """A value over `runs` that have one: mean, lowest and highest."""

    mean: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        numbers = [v for v in values if v is not None]
        if not numbers:
            return None
        return cls(sum(numbers) / len(numbers), min(numbers), max(numbers), len(numbers))


@dataclass(frozen=True)
class Arm:
    """An arm; `carried` are its step ranges with the number of runs that have rows there."""

    letter: str
    name: str
    runs: list[PostMortem]
    kinds: Mapping[Kind, int]
    carried: list[StepRange]
    signals: Mapping[str, Series] | Mapping[str, AveragedSeries]
    reward_at_common: Spread | None = None

    @property
    def title(self) -> str:
        return f"{self.letter} ({self.name})"


@dataclass(frozen=True)
class Setting:
    """A setting, named with dots where it is nested, and its values as text: a list per arm."""

    setting: str
    values: list[list[str]]

    @property
    def one_sided(self) -> bool:
        """Whether an arm did not record it."""
        return [NOT_SET] in self.values

    def shown(self) -> list[str]:
        """The values of each arm, shortened: long ones from their beginning, or, where several
        begin alike, from where these begin to differ."""
        alike: dict[str, set[str]] = {}
        for value in (v for of in self.values for v in of):
            alike.setdefault(value[:LONGEST], set()).add(value)
        return [", ".join(_cut(v, alike[v[:LONGEST]]) for v in of) for of in self.values]


def _cut(value: str, alike: Collection[str]) -> str:
    """LONGEST characters of a value, among them where it differs from those that begin like it."""
    least, most = min(alike), max(alike)  # all between them share the prefix of these two
    start = max(0, shared_prefix(least, most) - BEFORE) if least != most else 0
    end = start + LONGEST
    return f"{'… ' if start else ''}{value[start:end]}{' …' if len(value) > end else ''}"


@dataclass(frozen=True)
class Comparison:
    """Two arms. `common_step` is the last step at which every run of both has a row; None if there
    is none. `matched` is what `explore.comparison.compare` says of the signals, with a `Spread`, or
    None, of each arm at each point."""

    schema: int
    lldscope: str
    made: float
    arms: list[Arm]
    settings: list[Setting]
    varying: list[str]
    matched: dict[str, Any]
    common_step: int | None
    summary: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = asdict(self)
        for arm, plain in zip(self.arms, data["arms"], strict=True):
            runs = (run.to_dict() for run in arm.runs)
            plain["runs"] = [{name: run[name] for name in _OF_A_RUN} for run in runs]
        return data
