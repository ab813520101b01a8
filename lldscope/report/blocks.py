"""What a report is made of: blocks in reading order, rendered by `html` and `markdown`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..core import palette
from .examples import Example

Cell = str | palette.Sign


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
    """Cells are text, or a sign with its word; columns of numbers are aligned `right`."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    right: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Picture:
    """HTML with inline SVG; formats without pictures leave it out."""

    kind: Literal["timeline", "charts"]
    html: str


@dataclass(frozen=True)
class Box:
    """The answer on top of the report: a label and a text each."""

    rows: Sequence[tuple[str, str]]


Block = Box | Heading | Paragraph | Items | Table | Picture | Example


@dataclass(frozen=True)
class Document:
    """A report: its title, a line of verdict and place for each run it is about, its blocks."""

    title: str
    about: Sequence[tuple[palette.Sign, str]]
    blocks: Iterable[Block]
    footer: str
