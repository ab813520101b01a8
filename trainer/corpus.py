"""Documents a search can find."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """One retrievable passage. `id` is a number or a name, of one kind within a corpus."""

    id: int | str
    title: str
    text: str
