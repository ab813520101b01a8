"""What a report is made of: blocks, in the order in which they are read. `html` and
`markdown` render them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..core import palette
from ..core.numbers import signed

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Items:
    items: Sequence[str]
    ordered: bool = False


@dataclass(frozen=True)
class Table:
    """Cells are text, or a sign with its word; numbers stand to the right."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | palette.Sign]]
    right: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Picture:
    """Drawn from the facts where there are pictures; where there are none, left out."""

    kind: Literal["timeline", "charts"]
    facts: Facts


@dataclass(frozen=True)
class Example:
    facts: Mapping[str, Any]

    @property
    def shared(self) -> str:
        """With what both responses begin, and what that lost; empty without a partner."""
        count, delta = self.facts["shared_characters"], self.facts["shared_delta"]
        if count is None:
            return ""
        lost = "" if delta is None else f"; there the correct one changed by {signed(delta)} nats"
        return f"Both begin with the same {count:,} characters{lost}."


Block = Heading | Paragraph | Items | Table | Picture | Example


@dataclass(frozen=True)
class Document:
    """A report: its title, a line of verdict and place for each run it is about, its blocks."""

    title: str
    about: Sequence[tuple[palette.Sign, str]]
    blocks: Iterable[Block]
    footer: str
