"""The making of an index: one pass over the corpus for its words, then bm25s over their numbers.

Memory while building, per passage: 4 bytes a word plus what bm25s takes for its matrix, about 36
bytes per different word of a passage at its peak; never the texts.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bm25s
import numpy as np
from bm25s.tokenization import Tokenized

from lldscope.core.errors import LldscopeError

from ..data.corpus import read_corpus

OFFSETS = "offsets.npy"
_SMALL = 1 << 20
_STEPS = 500  # a bar that moves for each of 20 million documents is slower than they are
_PASSES = 3  # how often bm25s goes through the documents
_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text or a query as the index knows them."""
    return _WORD.findall(text.lower())


def build(path: Path, folder: Path) -> None:
    """Write the index of a corpus file into `folder`: bm25s' files, and where each document's line
    starts. Raises as `read_corpus` does, and LldscopeError for a corpus without a word."""
    vocabulary: dict[str, int] = {}
    numbers, ends, offsets = array("i"), array("q", [0]), array("q")
    size = path.stat().st_size if path.exists() else 0
    with progress(f"reading {path.name}", size) as advance:
        for offset, document in read_corpus(path):
            for word in words(f"{document.title} {document.text}"):
                numbers.append(vocabulary.setdefault(word, len(vocabulary)))
            ends.append(len(numbers))
            advance(offset - offsets[-1] if offsets else 0)
            offsets.append(offset)
    if not vocabulary:
        raise LldscopeError(f"{path}: there is no word in this corpus.")
    offsets.append(size)
    index = bm25s.BM25()
    with progress(f"indexing {path.name}", _PASSES * (len(ends) - 1)) as advance:
        documents = _Documents(numbers, ends, advance)
        corpus = Tokenized(ids=documents, vocab=vocabulary)
        index.index(corpus, create_empty_token=False, show_progress=False)
    index.save(folder, show_progress=False)
    np.save(folder / OFFSETS, np.asarray(offsets))


class _Documents:
    """The documents' word numbers, one list at a time: as lists all at once they would take
    several times the memory."""

    def __init__(
        self, numbers: array[int], ends: array[int], advance: Callable[[int], None]
    ) -> None:
        self._numbers, self._ends, self._advance = numbers, ends, advance

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[list[int]]:
        for i in range(len(self)):
            yield self._numbers[self._ends[i] : self._ends[i + 1]].tolist()
            self._advance(1)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Gives a function to call with how much was done, out of `total`. The bar is drawn on stderr,
    only on a terminal, and not for what is over in a moment."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if total < _SMALL or not console.is_terminal:
        yield lambda done: None
        return
    waiting = 0

    def advance(done: int) -> None:
        nonlocal waiting
        waiting += done
        if waiting * _STEPS >= total:
            bar.advance(task, waiting)
            waiting = 0

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield advance
