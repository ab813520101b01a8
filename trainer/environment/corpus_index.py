"""BM25 over a corpus file, with the index on disk.

An index is a folder of numpy arrays and JSON, memory-mapped when it is used: what a search needs of
it comes into memory, and nothing in it can run code. It belongs to the corpus by the corpus'
checksum and is used only if its own checksums hold; otherwise it is built again (index_build.py).
Texts stay on disk as well: a document is read when it is found.

Words are lower-cased runs of letters and digits, without stemming; stop words are indexed, but
asked for only in a query that has nothing else (docs/retrieval.md has the recall of each choice).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN

from lldscope.core.errors import LldscopeError

from ..data.corpus import Document, decode, is_lines, parse_document
from .index_build import COPY, OFFSETS, build, progress, words

_log = logging.getLogger(__name__)
_STOP_WORDS = frozenset(STOPWORDS_EN)
_META, _LOCK = "meta.json", "lock"
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
                f"{self._path} has changed since it was opened. Start again to index it anew."
            ) from None


def open_index(path: Path, cache_dir: Path | None = None) -> CorpusIndex:
    """The index of a corpus file: from disk if there is one that fits, else built and stored.

    It is stored in `cache_dir`, or beside the corpus, or in ~/.cache/lldscope where the corpus'
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
        try:
            return _from_disk(path, folder, corpus)
        except _Unusable as error:
            if str(error):
                _log.warning("the index in %s %s: indexing %s again", folder, error, path)
    folder = places[0] if cache_dir or os.access(path.parent, os.W_OK) else places[-1]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # One process builds; the others of a run that starts with several wait for it.
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(_Unusable):
                return _from_disk(path, folder, corpus)
            _make(path, folder, corpus, in_place)
        return CorpusIndex(path, folder)
    except OSError as error:
        raise LldscopeError(
            f"The index of {path} cannot be written into {folder}: {error.strerror or error}."
        ) from None


class _Unusable(Exception):
    """Why the index in a folder cannot be used; empty if there is none yet."""


def _from_disk(path: Path, folder: Path, corpus: dict[str, Any]) -> CorpusIndex:
    """The index in a folder if it is whole and belongs to the corpus; raises _Unusable if not."""
    if not (folder / _META).is_file():
        raise _Unusable
    try:
        meta = json.loads((folder / _META).read_text("utf-8"))
        if meta["corpus"] != corpus:
            raise _Unusable("is out of date")
        for name, checksum in meta["files"].items():
            if _checksum(folder / Path(name).name) != checksum:
                raise ValueError(f"{name} is damaged")
        return CorpusIndex(path, folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Unusable(f"cannot be used ({error})") from None


def _make(path: Path, folder: Path, corpus: dict[str, Any], in_place: bool) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as scratch:
        before = path.stat()
        build(path, Path(scratch), in_place)
        after = path.stat()
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise LldscopeError(f"{path} changed while it was indexed. Start again.")
        _keep(Path(scratch), folder, corpus)


def _keep(draft: Path, folder: Path, corpus: dict[str, Any]) -> None:
    """Move the files of a new index into place. The checksums go last, so that a half-moved index
    is not taken for a whole one; who has the old files mapped keeps them."""
    (folder / _META).unlink(missing_ok=True)
    (folder / COPY).unlink(missing_ok=True)
    files = {file.name: _checksum(file) for file in sorted(draft.iterdir())}
    (draft / _META).write_text(json.dumps({"corpus": corpus, "files": files}, indent=1), "utf-8")
    for name in (*files, _META):
        os.replace(draft / name, folder / name)


def _checksum(path: Path) -> str:
    """SHA-256 of a file."""
    sha = hashlib.sha256()
    with progress(f"checking {path.name}", path.stat().st_size) as advance, path.open("rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
            advance(len(block))
    return sha.hexdigest()
