"""The parts of a report: sections of blocks in reading order, rendered by `html` and `markdown`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.palette import Sign
from ..figures.svg import Drawing
from .losses import WorstToken


@dataclass(frozen=True)
class Strip:
    """A cell with a drawing; a format without pictures shows its `words`."""

    svg: str
    words: str


Cell = str | Sign | Strip


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Items:
    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Lines to type."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Cells are text, a sign with its word, or a strip; columns of numbers are aligned `right`."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    right: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Charts:
    """Charts beside each other. A format without pictures shows their words."""

    drawings: Sequence[Drawing]


@dataclass(frozen=True)
class Box:
    """The answer on top of the report: a label and a text each."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Tokens:
    """Single tokens with the text around them."""

    tokens: Sequence[WorstToken]


Block = Box | Paragraph | Items | Code | Table | Charts | Tokens


@dataclass(frozen=True)
class Section:
    """Blocks under a heading. The first one of a document has none; the others are folded."""

    heading: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """A report: its title, a line with the verdict of each run it is about, its sections."""

    title: str
    about: Sequence[tuple[Sign, str]]
    sections: Sequence[Section]
    footer: str
