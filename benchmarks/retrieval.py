"""Time and memory of a large corpus: `python -m benchmarks.retrieval [PASSAGES]`.

The passages are the 8,632 Wikipedia passages of the test data over and over, so every word is as
frequent as in a real corpus of that size; only the vocabulary stays small. The queries are
questions of NQ, all different. Seconds are those of the processor, which other work on the machine
hardly changes; only the server's are those of the clock.
"""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

from lldscope_trainer.data.corpus import contents, parse_document
from lldscope_trainer.environment.corpus_index import CorpusIndex, open_index
from lldscope_trainer.environment.retriever_client import HttpRetriever

from .data import DATA

PASSAGES = 200_000
THREADS = 16
SERVE = "from lldscope_trainer.environment.retriever_server import retriever; retriever()"


def main() -> None:
    if DATA is None:
        print("no data: name its folder in LLDSCOPE_DATA")
        return
    passages = int(sys.argv[1]) if sys.argv[1:] else PASSAGES
    questions = (DATA / "nq" / "test_1k.jsonl").read_text("utf-8").splitlines()
    queries = [json.loads(line)["question"] for line in questions]
    with tempfile.TemporaryDirectory() as folder:
        path = _write(Path(folder) / "corpus.jsonl", passages)
        print(f"{passages:,} passages, {path.stat().st_size / 1e6:,.0f} MB")
        code = f"from benchmarks.retrieval import built; built({str(path)!r})"
        subprocess.run([sys.executable, "-c", code], check=True)
        size = sum(file.stat().st_size for file in path.with_name("corpus.jsonl.bm25").iterdir())
        print(f"index on disk     {size / 1e6:8,.0f} MB, {size / passages:,.0f} bytes a passage")
        start = time.process_time()
        index = open_index(path)
        print(f"opened again in   {time.process_time() - start:8.2f} s")
        _search(index, queries)
        _serve(path, queries)


def built(path: str) -> None:
    """Build the index in this process and print what it took."""
    idle, start = _peak(), time.process_time()
    index = open_index(Path(path))
    seconds, peak = time.process_time() - start, _peak() - idle
    print(f"built in          {seconds:8.1f} s, {seconds / len(index) * 1e6:.0f} µs a passage")
    print(f"memory for that   {peak / 1e6:8,.0f} MB, {peak / len(index):,.0f} bytes a passage")


def _search(index: CorpusIndex, queries: list[str]) -> None:
    start = time.process_time()
    for query in queries:
        index.search(query, 3)
    rate = len(queries) / (time.process_time() - start)
    print(f"in this process   {rate:8,.0f} queries/s")


def _serve(path: Path, queries: list[str]) -> None:
    command = [sys.executable, "-c", SERVE, str(path), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    text = next(line for line in server.stderr if " at http" in line)
    retriever = HttpRetriever(text.partition(" at ")[2].partition(";")[0])
    try:
        start = time.perf_counter()
        retriever.retrieve(queries[:500])
        rate = 500 / (time.perf_counter() - start)
        print(f"server, one call  {rate:8,.0f} queries/s")
        start = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda query: retriever.retrieve([query]), queries[500:]))
        rate = (len(queries) - 500) / (time.perf_counter() - start)
        print(f"server, {THREADS} threads{rate:8,.0f} queries/s, one a call")
    finally:
        server.kill()


def _write(path: Path, passages: int) -> Path:
    assert DATA is not None
    with gzip.open(DATA / "derived" / "wiki18_retrieved_passages.jsonl.gz") as lines:
        documents = [parse_document(json.loads(line)) for line in lines]
    with path.open("w", encoding="utf-8") as file:
        for i, document in enumerate(islice(cycle(documents), passages)):
            file.write(json.dumps({"id": str(i), "contents": contents(document)}) + "\n")
    return path


def _peak() -> int:
    """The most memory this process has used, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
