"""The search tool: BM25 over the built-in world with an honest share of misses, or over a corpus.

A real retriever returns wrong documents too, and whether it finds the right one depends on the
wording. In the built-in world: with `miss_rate` the best document is withheld, decided by a hash of
seed and query, so the same query always gets the same answer and a rephrased one draws again. The
documents come in an order decided by the same hash, so their place gives nothing away. A corpus
file is searched as it is: the best documents, best first.

What is found is the same on every processor. bm25s adds up the float32 scores of the query's words
one after the other, so a score does not depend on vector instructions, and documents that match
alike score alike to the bit. Such ties are the rule in the built-in world, and breaking them is
part of the task: with ties broken by document number, a missed search would show the same few
countries again and again, and the shipped policy would find more answers (greedy, four times 512
questions: 0.585 instead of 0.554). So the hash breaks ties, as it did when that policy was trained;
the document number breaks ties of the hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from zlib import crc32

import bm25s
import numpy as np

from lldscope.core.errors import UsageError

from ..data.corpus import Document
from .corpus_index import CorpusIndex, words


class Retriever(Protocol):
    """Answers queries with documents: one entry per query, in order; a list, empty if the tool
    worked and found nothing, or None if the tool failed."""

    def retrieve(self, queries: Sequence[str]) -> list[list[Document] | None]: ...


class Bm25Retriever:
    """BM25 (the bm25s library, its default parameters) with top-`top_k`, misses and a cache."""

    def __init__(
        self,
        documents: Sequence[Document],
        *,
        top_k: int = 2,
        miss_rate: float = 0.25,
        seed: int = 0,
    ) -> None:
        if top_k >= len(documents):  # one more than a search gives, so that one can be withheld
            raise UsageError(f"top_k={top_k} is too many: there are {len(documents)} documents")
        self._documents = list(documents)
        self._top_k = top_k
        self._miss_rate = miss_rate
        self._seed = seed
        self._cache: dict[str, list[Document]] = {}
        self._index = bm25s.BM25()
        self._index.index(
            [words(f"{d.title} {d.text}") for d in self._documents], show_progress=False
        )
        self._vocabulary = frozenset(self._index.vocab_dict)

    def retrieve(self, queries: Sequence[str]) -> list[list[Document] | None]:
        """The documents for each query; an empty list if the corpus has none of its words."""
        texts = [" ".join(words(query)) for query in queries]
        for query in set(texts) - self._cache.keys():
            self._cache[query] = self._search(query)
        return [self._cache[query] for query in texts]

    def _search(self, query: str) -> list[Document]:
        words = [w for w in dict.fromkeys(query.split()) if w in self._vocabulary]
        if not words:
            return []
        rng = np.random.default_rng(crc32(f"{self._seed}|{query}".encode()))
        missed = rng.random() < self._miss_rate
        scores = self._index.get_scores(words)
        draws = rng.random(len(scores), dtype=np.float32)
        # A stable sort of all: a partial one leaves equal scores in an order that depends on the
        # vector instructions of the processor.
        best = np.lexsort((-draws, -scores))[: self._top_k + 1]
        indices = best[1:] if missed else best[:-1]
        return [self._documents[i] for i in rng.permutation(indices)]


class CorpusRetriever:
    """The best `top_k` documents of a corpus file (`corpus_index.open_index`), without misses."""

    def __init__(self, index: CorpusIndex, *, top_k: int) -> None:
        self._index = index
        self._top_k = top_k

    def retrieve(self, queries: Sequence[str]) -> list[list[Document] | None]:
        """The documents for each query, best first; an empty list if the corpus has none of its
        words. Raises LldscopeError if the corpus file has changed: all later searches would
        fail."""
        best = [self._index.search(query, self._top_k) for query in queries]
        return [[document for document, _ in results] for results in best]
