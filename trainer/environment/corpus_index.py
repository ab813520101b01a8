"""BM25 over a corpus file, with the index on disk.

An index is a folder of numpy arrays and JSON, which cannot run code. It is memory-mapped: a search
loads only the pages that it needs. The index holds the size and time of its corpus; an index of
another size or time, or one that cannot be opened, is built again. Texts stay in the corpus: a
document is read when it is found.

Words are lower-cased runs of letters and digits, without stemming; stop words are indexed, but
asked for only in a query that has nothing else (docs/retrieval.md has the recall of each choice).

Memory while building, per passage: 80 bytes and 4 a word, plus what bm25s takes for its matrix,
about 36 bytes per different word of a passage at its peak; never the texts.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import sys
from array import array
from functools import lru_cache
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN
from bm25s.tokenization import Tokenized
from tqdm import tqdm

from lldscope.core.errors import LldscopeError
from lldscope.storage.file_system import replacing

from ..data.corpus import Document, check_corpus, decode, parse_document, read_corpus

_log = logging.getLogger(__name__)
_STOP_WORDS = frozenset(STOPWORDS_EN)
_WORD = re.compile(r"\w+")
_META = "meta.json"
_OFFSETS = "offsets.npy"
_CACHED = 4096  # searches: the rollouts of a group often ask the same
_BLOCK = 1024
_FORMAT = 2  # counts up where an index written before must not be used any more


class CorpusIndex:
    """A corpus file that can be searched, from several threads at once."""

    def __init__(self, path: Path, folder: Path) -> None:
        """Open the index in `folder`; `open_index` checks or creates it first."""
        self._bm25 = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        self._offsets = np.load(folder / _OFFSETS, mmap_mode="r")
        self._path = path
        self._file = path.open("rb")
        self._best = lru_cache(_CACHED)(self._find)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def search(self, query: str, top_k: int) -> tuple[tuple[Document, float], ...]:
        """The `top_k` best (document, BM25 score), best first, ties in the corpus' order; only
        documents that share a word with the query. Raises LldscopeError if the corpus file has
        changed since it was opened."""
        terms = [w for w in dict.fromkeys(words(query)) if w in self._bm25.vocab_dict]
        query_words = [w for w in terms if w not in _STOP_WORDS] or terms
        return self._best(tuple(query_words), top_k) if query_words else ()

    def _find(self, query_words: tuple[str, ...], top_k: int) -> tuple[tuple[Document, float], ...]:
        scores = self._bm25.get_scores(list(query_words))
        # As many blocks as documents are wanted have a best score of `least` or more, so no
        # document below it is wanted: sorting all of them would take most of the time. Only the
        # value is taken from the partial sort, because its order of equal scores depends on the
        # processor; the documents are sorted stably.
        blocks = np.maximum.reduceat(scores, np.arange(0, len(scores), _BLOCK))
        least = np.partition(blocks, -top_k)[-top_k] if top_k <= len(blocks) else 0.0
        best = np.flatnonzero(scores >= least if least > 0 else scores)
        best = best[np.argsort(-scores[best], kind="stable")][:top_k]
        return tuple((self._document(int(i)), float(scores[i])) for i in best)

    def _document(self, row: int) -> Document:
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        try:
            line = os.pread(self._file.fileno(), end - start, start)
            return parse_document(decode(line), str(row))
        except (OSError, ValueError):
            raise LldscopeError(
                f"{self._path} has changed since it was opened. Restart to index it again."
            ) from None


def open_index(path: Path) -> CorpusIndex:
    """The index of a corpus file: a matching one from disk, or else a new one stored beside the
    corpus. Raises like `read_corpus`, and LldscopeError if the index cannot be written."""
    check_corpus(path)
    folder = path.with_name(f"{path.name}.bm25")
    try:
        # One process builds; the others of a run that starts with several wait for it.
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return _from_disk(path, folder) or _make(path, folder)
    except OSError as error:
        if index := _from_disk(path, folder):  # no lock is needed to read
            return index
        raise LldscopeError(
            f"The index of {path} cannot be written into {folder}: {error.strerror or error}. Link "
            "the corpus into a folder that can be written (ln -s)."
        ) from None


def _key(path: Path) -> dict[str, object]:
    """The identity of an index, as stored in JSON."""
    stat = path.stat()
    return {"format": _FORMAT, "bm25s": bm25s.__version__, "bytes": stat.st_size,
            "time": stat.st_mtime_ns}


def _from_disk(path: Path, folder: Path) -> CorpusIndex | None:
    """The index in a folder; None unless it matches the corpus and can be opened."""
    if not folder.exists():
        return None
    try:
        if json.loads((folder / _META).read_text("utf-8")) != _key(path):
            raise ValueError("out of date")
        return CorpusIndex(path, folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning(
            "the index in %s cannot be used (%s): indexing %s again", folder, error, path
        )
        return None


def _make(path: Path, folder: Path) -> CorpusIndex:
    """Build an index, and put it in place when complete. Processes that have mapped an old index
    keep it."""
    key = _key(path)
    with replacing(folder) as draft:
        draft.mkdir()
        build(path, draft)
        if _key(path) != key:
            raise LldscopeError(f"{path} changed while it was indexed. Start again.")
        (draft / _META).write_text(json.dumps(key), "utf-8")
    return CorpusIndex(path, folder)


def words(text: str) -> list[str]:
    """The indexed words of a text or query."""
    return _WORD.findall(text.lower())


def build(path: Path, folder: Path) -> None:
    """Write the index of a corpus file into `folder`: bm25s' files, and the start of each
    document's line. Raises like `read_corpus`, and LldscopeError for a corpus without a word."""
    vocabulary: dict[str, int] = {}
    documents: list[array[int]] = []  # numbers of words: lists would take several times the memory
    offsets = array("q")
    size = path.stat().st_size
    bar = tqdm(
        total=size, desc=f"reading {path.name}", unit="B", unit_scale=True, leave=False,
        disable=None,  # where there is no terminal
    )
    with bar:
        for offset, document in read_corpus(path):
            text = words(f"{document.title} {document.text}")
            numbers = (vocabulary.setdefault(word, len(vocabulary)) for word in text)
            documents.append(array("i", numbers))
            bar.update(offset - bar.n)
            offsets.append(offset)
    if not vocabulary:
        raise LldscopeError(f"{path}: there is no word in this corpus.")
    offsets.append(size)
    index = bm25s.BM25()
    corpus: Any = Tokenized(ids=documents, vocab=vocabulary)
    index.index(corpus, create_empty_token=False, show_progress=sys.stderr.isatty())
    index.save(folder, show_progress=False)
    np.save(folder / _OFFSETS, np.asarray(offsets))
