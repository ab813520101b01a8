"""BM25 over a corpus: its scores against the plain formula, and the index on disk."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import re
from pathlib import Path
from zlib import crc32

import lldscope_trainer.environment.corpus_index as corpus_index
import numpy as np
import pytest
from lldscope_trainer.builtin.world import World
from lldscope_trainer.environment.corpus_index import open_index
from lldscope_trainer.environment.retrieval import Bm25Retriever, CorpusRetriever

from lldscope.core.errors import LldscopeError

WORDS = ["oslo", "lima", "paris", "harbour", "capital", "river", "of", "the", "norway", "peru"]


def write(path: Path, texts: list[str]) -> Path:
    records = ({"title": f"t{i}", "text": text} for i, text in enumerate(texts))
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def random_texts(n: int = 60) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(n)]


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write(tmp_path / "c.jsonl", random_texts())


@pytest.fixture
def no_building(monkeypatch):
    """Makes a search of the disk fail where it finds nothing it can use."""

    def build(*args):
        raise AssertionError("the index was built again")

    return lambda: monkeypatch.setattr(corpus_index, "build", build)


def plain_bm25(texts: list[str], query: str, k1: float = 1.5, b: float = 0.75) -> list[float]:
    """Lucene's BM25 (Kamphuis et al., ECIR 2020, table 1): for each different word of the query
    ln(1 + (N - df + 0.5)/(df + 0.5)) · tf/(tf + k1·(1 - b + b·length/mean length))."""
    documents = [re.findall(r"\w+", text.lower()) for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    scores = [0.0] * len(documents)
    for word in set(re.findall(r"\w+", query.lower())):
        df = sum(word in document for document in documents)
        idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
        for i, document in enumerate(documents):
            tf = document.count(word)
            scores[i] += idf * tf / (tf + k1 * (1 - b + b * len(document) / mean))
    return scores


# -- search ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query", ["Oslo", "capital, harbour: PARIS!", "oslo oslo river", "t7 lima"]
)
def test_scores_are_those_of_the_plain_formula(corpus, query):
    scores = plain_bm25([f"t{i} {text}" for i, text in enumerate(random_texts())], query)
    order = sorted(range(len(scores)), key=lambda i: (-round(scores[i], 6), i))
    expected = [i for i in order if scores[i] > 0]
    index = open_index(corpus)
    for top_k in (1, 3, 1000):
        results = index.search(query, top_k)
        assert [document.id for document, _ in results] == [str(i) for i in expected[:top_k]]
        assert [score for _, score in results] == pytest.approx(
            [scores[i] for i in expected[:top_k]], rel=1e-5
        )


def test_stop_words_count_only_where_there_is_nothing_else(corpus):
    index = open_index(corpus)
    assert index.search("the river of the", 5) == index.search("river", 5)
    assert "the" in index.search("The the?", 1)[0][0].text
    assert index.search("zzz", 5) == index.search("", 5) == index.search("?!", 5) == ()


@pytest.mark.parametrize("top_k", [1, 3, 10])
def test_the_best_of_many_documents(tmp_path, monkeypatch, top_k):
    path = write(tmp_path / "c.jsonl", random_texts(500))
    everything = open_index(path).search("oslo harbour", 500)
    monkeypatch.setattr(corpus_index, "_BLOCK", 7)
    assert open_index(path).search("oslo harbour", top_k) == everything[:top_k]


def test_the_built_in_world_is_searched_alike_everywhere():
    """By any processor and any version of numpy or bm25s: the shipped policy learnt in this world,
    and the recorded runs were trained in it."""
    world = World.real()
    for seed, expected in ((0, 4033120360), (1, 3735628921)):
        results = Bm25Retriever(world.documents, seed=seed).retrieve(asked_of(world))
        ids = [[document.id for document in documents] for documents in results]
        assert crc32(repr(ids).encode()) == expected


def asked_of(world: World) -> list[str]:
    """What a policy that searches well asks on the way to 200 answers."""
    hops = [hop for question in world.questions(random.Random(0), 200) for hop in question.hops]
    return [f"{hop.relation} {hop.subject}" for hop in hops]


# -- the index on disk ----------------------------------------------------------------------------


def test_a_second_start_takes_the_index_from_disk(tmp_path, no_building):
    path = tmp_path / "c.jsonl"
    records = [{"title": "t", "text": text} for text in random_texts()]
    path.write_text("\n\n".join(map(json.dumps, records)))
    first = open_index(path).search("oslo harbour", 9)
    no_building()
    again = open_index(path)
    assert again.search("oslo harbour", 9) == first
    assert len(again) == len(records)


def test_a_changed_corpus_is_indexed_again(corpus, caplog):
    open_index(corpus)
    before = corpus.stat()
    corpus.write_bytes(corpus.read_bytes().replace(b"oslo", b"ulan"))
    os.utime(corpus, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert corpus.stat().st_size == before.st_size
    index = open_index(corpus)
    assert index.search("ulan", 1)
    assert not index.search("oslo", 1)
    assert "out of date" in caplog.text


def test_a_damaged_index_is_built_again_and_said(corpus, caplog, no_building):
    right = open_index(corpus).search("oslo harbour", 9)
    (corpus.with_name("c.jsonl.bm25") / "meta.json").write_text("[{")
    assert open_index(corpus).search("oslo harbour", 9) == right
    assert "cannot be used" in caplog.text
    no_building()
    open_index(corpus)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["data.csc.index.npy", "offsets.npy"])
def test_nothing_in_an_index_is_unpickled(corpus, tmp_path, name, caplog):
    right = open_index(corpus).search("oslo", 3)
    folder, boom = corpus.with_name("c.jsonl.bm25"), tmp_path / "boom"
    np.save(folder / name, np.array([Bomb(boom)], dtype=object), allow_pickle=True)
    assert open_index(corpus).search("oslo", 3) == right
    assert "cannot be used" in caplog.text
    assert not boom.exists()
    np.save(tmp_path / "x.npy", np.array([Bomb(boom)], dtype=object), allow_pickle=True)
    with (tmp_path / "x.npy").open("rb") as file:  # the bomb is a real one
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        pickle.load(file)
    assert boom.exists()


def stop(corpus: Path) -> None:
    raise KeyboardInterrupt


def append(corpus: Path) -> None:
    corpus.write_bytes(corpus.read_bytes() + b"\n")


@pytest.mark.parametrize(
    ("happens", "error", "message"),
    [(stop, KeyboardInterrupt, None), (append, LldscopeError, "changed while it was indexed")],
)
def test_an_index_that_was_not_finished_undisturbed_is_not_kept(
    corpus, monkeypatch, happens, error, message
):
    build = corpus_index.build
    with monkeypatch.context() as patch:
        patch.setattr(corpus_index, "build", lambda *args: (build(*args), happens(corpus)))
        with pytest.raises(error, match=message):
            open_index(corpus)
    assert {file.name for file in corpus.parent.iterdir()} == {"c.jsonl", "c.jsonl.lock"}
    assert open_index(corpus).search("oslo", 1)


def test_a_corpus_written_to_while_it_is_searched_ends_the_run(corpus):
    retriever = CorpusRetriever(open_index(corpus), top_k=2)
    corpus.write_bytes(b"x" * corpus.stat().st_size)
    assert retriever.retrieve(["zzz"]) == [[]]
    with pytest.raises(LldscopeError, match="changed"):
        retriever.retrieve(["oslo"])
