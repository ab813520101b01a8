"""The retriever over HTTP: server and client of Search-R1's protocol, and what goes wrong."""

from __future__ import annotations

import itertools
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import lldscope_trainer.environment.retriever_client as retriever_client
import pytest
from lldscope_trainer.data.corpus import Document
from lldscope_trainer.environment.corpus_index import open_index
from lldscope_trainer.environment.retrieval import CorpusRetriever
from lldscope_trainer.environment.retriever_client import HttpRetriever

from lldscope.core.errors import UsageError

CITIES = ["Oslo", "Lima", "Paris", "Rome", "Quito", "Cairo"]
TEXTS = [f"{city} is a capital.\nIt lies by water {i}." for i, city in enumerate(CITIES)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "c.jsonl"
    records = (
        {"id": f"doc-{i}", "contents": f'"{city}"\n{text}'}
        for i, (city, text) in enumerate(zip(CITIES, TEXTS, strict=True))
    )
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def port(corpus) -> Iterator[int]:
    """The port of a server process that runs for all tests of this module."""
    command = [sys.executable, "-m", "lldscope", "retriever", str(corpus), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        lines = iter(process.stderr.readline, "")
        ready = next(line for line in lines if "documents at http" in line)
        yield int(ready.partition("127.0.0.1:")[2].partition("/")[0])
        process.kill()


def send(port: int, body: bytes, path: str = "/retrieve", method: str = "POST", **headers: str):
    """(status, decoded answer) of a request made by hand."""
    url, headers = f"http://127.0.0.1:{port}{path}", {"Content-Type": "application/json"} | headers
    response = httpx2.request(method, url, content=body, headers=headers, trust_env=False)
    return response.status_code, response.json()


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("lldscope")]


# -- server ---------------------------------------------------------------------------------------


def test_what_search_r1_sends_and_makes_of_the_answer(port):
    # The payload of Search-R1's generation.py, written out as `requests` does.
    body = b'{"queries": ["capital Lima", "no such word"], "topk": 3, "return_scores": true}'
    status, answer = send(port, body)
    assert status == 200
    first, second = answer["result"]
    assert len(first) == 3
    assert [entry["score"] for entry in first] == sorted((e["score"] for e in first), reverse=True)
    assert second == []
    best = first[0]["document"]
    assert best == {"id": "doc-1", "contents": f'"Lima"\n{TEXTS[1]}'}
    title, text = best["contents"].split("\n")[0], "\n".join(best["contents"].split("\n")[1:])
    assert f"Doc 1(Title: {title}) {text}\n" == f'Doc 1(Title: "Lima") {TEXTS[1]}\n'


def test_number_of_documents(port):
    for topk, n in (("null", 3), ("0", 3), ("1", 1), ("5", 5), ("100", 6), (None, 3)):
        body = '{"queries": ["capital"]' + (f', "topk": {topk}' if topk else "") + "}"
        status, answer = send(port, body.encode())
        assert (status, len(answer["result"][0])) == (200, n), topk


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"[]", 400, "not a JSON object"),
        (b"{}", 400, "'queries'"),
        (b'{"queries": ["Oslo", 5]}', 400, "'queries'"),
        (b'{"queries": ["Oslo"], "topk": 101}', 400, "'topk'"),
        (b'{"queries": ["Oslo"], "return_scores": "yes"}', 400, "'return_scores'"),
        (json.dumps({"queries": ["x"] * 10_001}).encode(), 413, "10000 queries"),
        (b" " * ((16 << 20) + 1), 413, "bytes"),
    ],
)
def test_a_wrong_request_is_answered_with_a_sentence(port, body, status, message):
    code, answer = send(port, body)
    assert code == status
    assert message in answer["detail"]
    assert send(port, b'{"queries": []}')[0] == 200


def test_other_places_methods_and_names(port):
    assert send(port, b"{}", path="/")[0] == 404
    assert send(port, b"", method="GET")[0] == 405
    body = b'{"queries": []}'
    assert send(port, body, Host="attacker.example:8000")[0] == 403
    assert send(port, body, Host="localhost:8000")[0] == 200
    assert send(port, body, Host="[::1]:8000")[0] == 200


# -- client and server ----------------------------------------------------------------------------


def test_over_http_as_in_this_process(port, corpus):
    queries = ["capital Rome", "no such word", "capital Rome", "water 4", "\ud800 Lima"]
    here = CorpusRetriever(open_index(corpus), top_k=2).retrieve(queries)
    assert HttpRetriever(f"http://127.0.0.1:{port}", top_k=2).retrieve(queries) == here


def test_a_proxy_in_the_environment_is_not_used(port, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert HttpRetriever(f"http://127.0.0.1:{port}", top_k=1, retries=0).retrieve(["Rome"])[0]


# -- client and strange servers -------------------------------------------------------------------


class Strange:
    """A server that gives the next of `replies`, the last one again and again: a status, a value
    as JSON, the parts of an answer, or an error. Ten seconds pass between two looks at the clock.
    """

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.requests: list[list[str]] = []
        self.pauses: list[float] = []
        self.monotonic, self.sleep = itertools.count(0, 10).__next__, self.pauses.append

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        assert request.extensions["timeout"] == {"connect": 5.0} | dict.fromkeys(
            ("read", "write", "pool"), 25.0
        )
        self.requests.append(json.loads(request.content)["queries"])
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, int):
            return httpx2.Response(reply, content=iter([b"oops"]))
        parts = [json.dumps(reply).encode()] if isinstance(reply, dict) else reply
        return httpx2.Response(200, content=iter(parts))

    def ask(self, *queries: str) -> list[list[Document] | None]:
        return self.retriever.retrieve(queries)


@pytest.fixture
def strange(monkeypatch) -> Strange:
    server, client = Strange(), httpx2.Client
    transport = httpx2.MockTransport(server.answer)
    monkeypatch.setattr(httpx2, "Client", lambda **options: client(transport=transport, **options))
    monkeypatch.setattr(retriever_client, "time", server)
    monkeypatch.setattr(retriever_client, "_MAX_ANSWER", 1 << 20)
    server.retriever = HttpRetriever("http://strange/retrieve", top_k=2, timeout=25, retries=2)
    return server


GOOD = {"result": [[{"document": {"id": "a", "contents": '"T"\nbody'}, "score": 1.0}]]}
FOUND = [[Document("a", "T", "body")]]
MALFORMED = [
    [b""],
    [b"\xff\xff"],
    [b"[" * 100_000],
    {"result": None},
    {"result": [[], []]},
    {"result": [[None]]},
    {"result": [[{"document": None}]]},
    {"result": [[{"document": {"id": "a"}}]]},
    {"result": [[{"document": {"id": [], "contents": "x"}}]]},
]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        *((reply, "is not what Search-R1 sends") for reply in MALFORMED),
        *((status, f"HTTP status {status}") for status in (301, 400, 404, 422)),
        ([b" " * (1 << 20)] * 2, "longer than 1 MiB"),
    ],
)
def test_what_asking_again_would_not_help_is_a_failed_search(strange, caplog, reply, words):
    strange.replies = [reply, GOOD]
    assert strange.ask("q") == [None]
    assert len(strange.requests) == 1
    assert words in warnings(caplog)[0]
    assert strange.ask("q") == FOUND


def test_other_servers_dialects(strange):
    strange.replies = [{"result": [
        [{"document": {"contents": '"T"\nbody'}}],  # web search: no id, no score
        [{"id": 5, "contents": '"T"\nbody'}],  # without scores
        [{"document": {"id": "a", "title": "T", "text": "body"}, "score": 1}] * 9,
    ]}]
    web, bare, many = strange.ask("a", "b", "c")
    assert (web[0].title, web[0].text) == ("T", "body")
    assert bare == [Document("5", "T", "body")]
    assert many == [Document("a", "T", "body")] * 2


def test_a_failing_server_gets_one_attempt_a_call_and_one_warning_until_it_answers(strange, caplog):
    strange.replies = [503, 500, GOOD]
    assert strange.ask("q") == FOUND
    assert strange.pauses[1] == 2 * strange.pauses[0]
    assert warnings(caplog) == []
    strange.replies = [500]
    assert strange.ask("q") == [None]
    assert len(strange.requests) == 3 + 3
    assert strange.ask("q") == strange.ask("q") == [None]
    assert len(strange.requests) == 3 + 3 + 2
    assert ["HTTP status 500" in text for text in warnings(caplog)] == [True]
    strange.replies = [GOOD]
    assert strange.ask("q") == FOUND
    assert ["answers again" in text for text in warnings(caplog)] == [False, True]


def test_one_bad_batch_costs_only_its_queries(strange, monkeypatch):
    monkeypatch.setattr(retriever_client, "_BATCH", 1)
    strange.replies = [GOOD, 400, GOOD]
    assert strange.ask("a", "b", "c") == [*FOUND, None, *FOUND]


@pytest.mark.parametrize("reply", [httpx2.ReadTimeout("silence"), [b"[1,"] * 1000], ids=type)
def test_a_server_that_is_silent_or_trickles_is_given_up(strange, caplog, monkeypatch, reply):
    monkeypatch.setattr(retriever_client, "_BATCH", 1)
    strange.replies = [reply]
    assert strange.ask("a", "b", "c") == [None, None, None]
    assert strange.requests == [["a"]] * 3, "the rest is not tried"
    assert "no answer within 25 s" in warnings(caplog)[0]


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/retrieve", "http://h:99999"])
def test_what_cannot_be_an_address(url):
    with pytest.raises(UsageError, match=r"write it like http://127\.0\.0\.1:8000/retrieve"):
        HttpRetriever(url)


def test_secrets_in_the_address_stay_out_of_the_log(caplog):
    caplog.set_level(logging.DEBUG, "lldscope_trainer")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    HttpRetriever(f"http://me:secret@127.0.0.1:{port}/r?key=secret", retries=0).retrieve(["a"])
    assert f"http://127.0.0.1:{port}/r:" in warnings(caplog)[0]
    assert "secret" not in caplog.text
