"""Two arms side by side, as data: `Comparison.to_dict()` is `lldscope compare --format json`.

An arm is a run, or several runs that differ in nothing but chance, such as seeds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ...explore.settings import NOT_SET
from ..facts import PostMortem

LONGEST = 80  # characters of a setting's value that are shown

# What the comparison says of each run; the rest is in the report of the run itself.
_OF_A_RUN = (
    "run", "state", "trend", "phases", "events", "fall", "signals", "look_alikes", "alarms",
    "damaged", "dropped", "summary",
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
        """None where no run has one."""
        numbers = [v for v in values if v is not None]
        if not numbers:
            return None
        return cls(sum(numbers) / len(numbers), min(numbers), max(numbers), len(numbers))


@dataclass(frozen=True)
class Arm:
    """An arm, with its reward at the last step that every run of both has."""

    letter: str
    name: str
    runs: list[PostMortem]
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

    def values_of_arms(self) -> list[str]:
        """The values of each arm; of long ones the beginning."""
        return [", ".join(v[:LONGEST] + "…" * (len(v) > LONGEST) for v in of) for of in self.values]


@dataclass(frozen=True)
class Comparison:
    """Two arms. `common_step` is the last step at which every run of both has a row; None if there
    is none. `varying` are settings that take the same values in both arms, such as seeds."""

    schema: int
    lldscope: str
    made: float
    arms: list[Arm]
    settings: list[Setting]
    varying: list[str]
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
