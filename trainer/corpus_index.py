"""BM25 over a corpus file, with the index kept on disk.

An index is a folder of numpy arrays and JSON, memory-mapped when it is used: what a search needs of
it comes into memory, and nothing in it can run code. It belongs to the corpus by the corpus'
checksum and is used only if its own checksums hold; otherwise it is built again (index_build.py).
Texts stay on disk as well: a document is read when it is found.

Words are lower-cased runs of letters and digits, without stemming; stop words are indexed, but
asked for only in a query that has nothing else (docs/retrieval.md has the recall of each choice).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN

from lldscope.errors import LldscopeError

from .corpus import Document, decode, is_lines, parse_document
from .index_build import COPY, OFFSETS, build, words
from .progress import progress

_log = logging.getLogger(__name__)
_STOP_WORDS = frozenset(STOPWORDS_EN)
_META = "meta.json"
_REMEMBERED = 4096  # searches: the rollouts of a group often ask the same
_BLOCK = 1024
_FORMAT = 1  # counts up where an index written before must not be used any more


class CorpusIndex:
    """A corpus file that can be searched, from several threads at once."""

    def __init__(self, path: Path, folder: Path) -> None:
        """Open the index in `folder`; `open_index` checks or makes it first."""
        self._bm25 = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        self._offsets = np.load(folder / OFFSETS, mmap_mode="r")
        self._path = folder / COPY if (folder / COPY).exists() else path
        self._file = self._path.open("rb")
        self._best = lru_cache(_REMEMBERED)(self._find)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def search(self, query: str, top_k: int) -> tuple[tuple[Document, float], ...]:
        """The `top_k` best (document, BM25 score), best first, equal ones in the corpus' order;
        only documents that share a word with the query.

        Raises LldscopeError where the corpus file was written to since it was opened.
        """
        known = [w for w in dict.fromkeys(words(query)) if w in self._bm25.vocab_dict]
        asked = [w for w in known if w not in _STOP_WORDS] or known
        return self._best(tuple(asked), top_k) if asked else ()

    def _find(self, asked: tuple[str, ...], top_k: int) -> tuple[tuple[Document, float], ...]:
        scores = self._bm25.get_scores(list(asked))
        # As many blocks as documents are wanted have a best score of `least` or more, so no
        # document below it is wanted: sorting all of them would take most of the time.
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
                f"{self._path} has changed since it was opened. Start again to index it anew."
            ) from None


def open_index(path: Path, cache_dir: Path | None = None) -> CorpusIndex:
    """The index of a corpus file: from disk if one is there and fits, else built and kept.

    It is kept in `cache_dir`, or beside the corpus, or in ~/.cache/lldscope where the corpus'
    folder cannot be written. Raises as `read_corpus` does, and LldscopeError where the index
    cannot be written.
    """
    in_place = is_lines(path) and path.suffix != ".gz"
    corpus = {"format": _FORMAT, "bm25s": bm25s.__version__, "sha256": _checksum(path)}
    shared = f"{path.name}-{crc32(os.fsencode(path.resolve())):08x}.bm25"
    if cache_dir is not None:
        places = [cache_dir / shared]
    else:
        places = [path.with_name(f"{path.name}.bm25"), Path.home() / ".cache" / "lldscope" / shared]
    for folder in places:
        if found := _from_disk(path, folder, corpus):
            return found
    folder = places[0] if cache_dir or os.access(path.parent, os.W_OK) else places[-1]
    _log.info("indexing %s into %s", path, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as scratch:
            before = path.stat()
            build(path, Path(scratch), in_place)
            after = path.stat()
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise LldscopeError(f"{path} changed while it was indexed. Start again.")
            _keep(Path(scratch), folder, corpus)
        return CorpusIndex(path, folder)
    except OSError as error:
        raise LldscopeError(
            f"The index of {path} cannot be written into {folder}: {error.strerror or error}."
        ) from None


def _from_disk(path: Path, folder: Path, corpus: dict[str, Any]) -> CorpusIndex | None:
    """The index in a folder if it is whole and belongs to the corpus; says why where it is not."""
    try:
        meta = json.loads((folder / _META).read_text("utf-8"))
        if meta["corpus"] != corpus:
            _log.warning("the index of %s is out of date: indexing it again", path)
            return None
        for name, sum_ in meta["files"].items():
            if _checksum(folder / Path(name).name) != sum_:
                raise ValueError(f"{name} is damaged")
        return CorpusIndex(path, folder)
    except FileNotFoundError as error:
        if not folder.is_dir():
            return None
        reason: Exception = error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = error
    _log.warning("the index in %s cannot be used (%s): indexing %s again", folder, reason, path)
    return None


def _keep(made: Path, folder: Path, corpus: dict[str, Any]) -> None:
    """Move the files of a new index into place. The checksums go last, so that a half-moved index
    is not taken for a whole one; who has the old files mapped keeps them."""
    (folder / _META).unlink(missing_ok=True)
    (folder / COPY).unlink(missing_ok=True)
    files = {file.name: _checksum(file) for file in sorted(made.iterdir())}
    (made / _META).write_text(json.dumps({"corpus": corpus, "files": files}, indent=1), "utf-8")
    for name in (*files, _META):
        os.replace(made / name, folder / name)


def _checksum(path: Path) -> str:
    """SHA-256 of a file."""
    sha = hashlib.sha256()
    with progress(f"checking {path.name}", path.stat().st_size) as advance, path.open("rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
            advance(len(block))
    return sha.hexdigest()
