"""How often BM25 finds what a question needs: `python -m benchmarks.recall [words]`.

The query is the question itself, the corpora are small (docs/retrieval.md), so this compares
settings of the retriever; it does not say what a search agent gets out of all of Wikipedia. With
`words` the choices of what counts as a word are compared instead; stemming then needs PyStemmer.
Seconds are those of the processor.
"""

from __future__ import annotations

import gzip
import json
import re
import string
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN
from lldscope_trainer.data.corpus import Document, contents
from lldscope_trainer.environment.corpus_index import CorpusIndex, open_index, words

from .data import DATA

CUTS = (1, 3, 5, 10)


@dataclass(frozen=True)
class Asked:
    """A question, its answers, and the rows of the paragraphs that answer it."""

    question: str
    answers: tuple[str, ...]
    gold: frozenset[str]


@dataclass(frozen=True)
class Benchmark:
    """Documents and questions about them."""

    name: str
    documents: list[Document]
    asked: list[Asked]

    def write(self, folder: Path) -> Path:
        """The corpus as a file."""
        path = folder / "corpus.jsonl"
        records = ({"id": d.id, "contents": contents(d)} for d in self.documents)
        path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
        return path


def _documents(path: Path) -> list[Document]:
    """Of a list of {title, text}, or titles with their sentences."""
    value = _json(path)
    pairs = (
        [(title, " ".join(s.strip() for s in sentences)) for title, sentences in value.items()]
        if isinstance(value, dict)
        else [(record["title"], record["text"]) for record in value]
    )
    return [Document(str(row), title, text) for row, (title, text) in enumerate(pairs)]


def hotpotqa(data: Path) -> Benchmark:
    """100 training questions; gold are the paragraphs of the supporting facts."""
    corpus = _documents(data / "hotpotqa" / "hipporag_train100_corpus.json.gz")
    rows = {d.title: str(d.id) for d in corpus}
    questions = [
        Asked(q["question"], (q["answer"],), frozenset(rows[t] for t, _ in q["supporting_facts"]))
        for q in _json(data / "hotpotqa" / "hipporag_train100.json.gz")
    ]
    return Benchmark("HotpotQA", corpus, questions)


def musique(data: Path) -> Benchmark:
    """100 training questions; gold are the paragraphs marked as supporting."""
    corpus = _documents(data / "musique" / "hipporag_train100_corpus.json.gz")
    rows = {(d.title, d.text): str(d.id) for d in corpus}
    questions = [
        Asked(
            q["question"],
            (q["answer"], *q["answer_aliases"]),
            frozenset(
                rows[p["title"], p["paragraph_text"]] for p in q["paragraphs"] if p["is_supporting"]
            ),
        )
        for q in _json(data / "musique" / "hipporag_train100.json.gz")
    ]
    return Benchmark("MuSiQue", corpus, questions)


def two_wiki(data: Path) -> Benchmark:
    """The questions whose support was found in the corpus by matching strings: a heuristic."""
    corpus = _documents(data / "2wikimultihopqa" / "hipporag_corpus_6119.json.gz")
    rows = {d.title: str(d.id) for d in corpus}
    path = data / "derived" / "2wiki_supported_by_hipporag_corpus.jsonl"
    questions = [
        Asked(q["question"], (q["answer"],), frozenset(rows[t] for t in q["support"]))
        for q in map(json.loads, path.read_text("utf-8").splitlines())
    ]
    return Benchmark("2WikiMultiHopQA", corpus, questions)


BENCHMARKS = (hotpotqa, musique, two_wiki)


def gold_recall(results: list[list[Document]], questions: list[Asked], cut: int) -> float:
    """Mean share of a question's gold paragraphs among its first `cut` documents."""
    shares = [
        len(a.gold & {str(d.id) for d in documents[:cut]}) / len(a.gold)
        for documents, a in zip(results, questions, strict=True)
    ]
    return float(np.mean(shares))


def answer_recall(results: list[list[Document]], questions: list[Asked], cut: int) -> float:
    """Share of questions with an answer in the text of their first `cut` documents, both
    normalised as for exact match. Yes/no questions do not count: their answer is not a place in a
    text."""
    hits = []
    for documents, a in zip(results, questions, strict=True):
        answers = {f" {_plain(answer)} " for answer in a.answers}
        if not answers & {" yes ", " no "}:
            text = f" {_plain(' '.join(f'{d.title} {d.text}' for d in documents[:cut]))} "
            hits.append(any(answer in text for answer in answers))
    return float(np.mean(hits))


def search(index: CorpusIndex, questions: list[Asked]) -> list[list[Document]]:
    """The ten best documents for each question."""
    return [[document for document, _ in index.search(a.question, max(CUTS))] for a in questions]


def main() -> None:
    if DATA is None:
        print("no data: name its folder in LLDSCOPE_DATA")
        return
    benchmarks = [benchmark(DATA) for benchmark in BENCHMARKS]
    (_compare_words if "words" in sys.argv[1:] else _as_shipped)(benchmarks)


def _as_shipped(benchmarks: list[Benchmark]) -> None:
    head = "  ".join(f"@{cut:<4}" for cut in CUTS)
    print(f"{'':16}{'passages':>9}{'questions':>10}  gold {head} answer {head} index  queries/s")
    for b in benchmarks:
        with tempfile.TemporaryDirectory() as folder:
            path = b.write(Path(folder))
            start = time.process_time()
            index = open_index(path)
            built = time.process_time() - start
            start = time.process_time()
            results = search(index, b.asked)
            rate = len(b.asked) / (time.process_time() - start)
        gold = "  ".join(f"{gold_recall(results, b.asked, cut):5.1%}" for cut in CUTS)
        answer = "  ".join(f"{answer_recall(results, b.asked, cut):5.1%}" for cut in CUTS)
        print(
            f"{b.name:16}{len(index):9,}{len(b.asked):10,}       {gold}        {answer}"
            f" {built:4.2f} s  {rate:7,.0f}"
        )


def _compare_words(benchmarks: list[Benchmark]) -> None:
    for b in benchmarks:
        documents = b.documents
        print(f"{b.name:34}" + "  ".join(f"@{cut:<4}" for cut in CUTS) + "  queries/s")
        for name, in_documents, in_query in _choices():
            index = bm25s.BM25()
            index.index(
                [in_documents(f"{d.title} {d.text}") for d in documents], show_progress=False
            )
            start = time.process_time()
            results = []
            for a in b.asked:
                terms = [w for w in dict.fromkeys(in_query(a.question)) if w in index.vocab_dict]
                best = np.argsort(-index.get_scores(terms), kind="stable")[: max(CUTS)]
                results.append([documents[i] for i in best])
            rate = len(b.asked) / (time.process_time() - start)
            recall = "  ".join(f"{gold_recall(results, b.asked, cut):5.1%}" for cut in CUTS)
            print(f"  {name:32}{recall}  {rate:7,.0f}")


Words = Callable[[str], list[str]]


def _choices() -> Iterator[tuple[str, Words, Words]]:
    """(name, words of a document, words of a query)"""

    def without(text: str) -> list[str]:
        return [w for w in words(text) if w not in STOPWORDS_EN]

    yield "every word", words, words
    yield "stop words not asked for", words, without
    yield "stop words not indexed", without, without
    try:
        import Stemmer
    except ImportError:
        return
    stem = Stemmer.Stemmer("english").stemWords
    yield "stems", lambda t: stem(words(t)), lambda t: stem(words(t))
    yield "stems, stop words not asked for", lambda t: stem(words(t)), lambda t: stem(without(t))


def _plain(text: str) -> str:
    plain = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def _json(path: Path) -> Any:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


if __name__ == "__main__":
    main()
