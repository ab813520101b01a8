"""The retriever over HTTP: server and client of Search-R1's protocol, and what goes wrong."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

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


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(retriever_client, "_FIRST_PAUSE", 0.01)


def send(port: int, body: bytes, path: str = "/retrieve", method: str = "POST", **headers: str):
    """(status, decoded answer) of a request made by hand."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


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


@pytest.mark.parametrize(
    ("topk", "arguments"), [("null", 3), ("0", 3), ("1", 1), ("5", 5), ("100", 6), (None, 3)]
)
def test_number_of_documents(port, topk, arguments):
    body = '{"queries": ["capital"]' + (f', "topk": {topk}' if topk else "") + "}"
    status, answer = send(port, body.encode())
    assert status == 200
    assert len(answer["result"][0]) == arguments


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
    """A server that answers as told: each reply is (status, body, seconds before each part)."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, list[bytes], float]] = []
        self.requests: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                requests = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append(json.loads(requests))
                several = len(outer.replies) > 1
                status, parts, pause = outer.replies.pop(0) if several else outer.replies[0]
                try:
                    time.sleep(pause)
                    self.send_response(status)
                    self.end_headers()
                    for part in parts:
                        self.wfile.write(part)
                        self.wfile.flush()
                        time.sleep(pause)
                except OSError:
                    pass  # nobody waits any more

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/retrieve"

    def reply(self, body: object, status: int = 200, pause: float = 0.0) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.replies.append((status, [data], pause))


@pytest.fixture
def strange() -> Iterator[Strange]:
    sample = Strange()
    thread = threading.Thread(target=sample.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield sample
    sample.server.shutdown()
    sample.server.server_close()


GOOD = {"result": [[{"document": {"id": "a", "contents": '"T"\nbody'}, "score": 1.0}]]}
FOUND = [[Document("a", "T", "body")]]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xff",
        b"[" * 100_000,
        {"result": None},
        {"result": [[], []]},
        {"result": [[None]]},
        {"result": [[{"document": None}]]},
        {"result": [[{"document": {"id": "a"}}]]},
        {"result": [[{"document": {"id": [], "contents": "x"}}]]},
    ],
)
def test_a_malformed_answer_is_a_failed_search(strange, caplog, body):
    strange.reply(body)
    there = HttpRetriever(strange.url)
    assert there.retrieve(["q"]) == [None]
    assert len(strange.requests) == 1  # asking again would not help
    assert "is not what Search-R1 sends" in warnings(caplog)[0]
    strange.replies.clear()
    strange.reply(GOOD)
    assert there.retrieve(["q"]) == FOUND


def test_other_servers_dialects(strange):
    strange.reply({"result": [
        [{"document": {"contents": '"T"\nbody'}}],  # web search: no id, no score
        [{"id": 5, "contents": '"T"\nbody'}],  # without scores
        [{"document": {"id": "a", "title": "T", "text": "body"}, "score": 1}] * 9,
    ]})
    web, bare, many = HttpRetriever(strange.url, top_k=2).retrieve(["a", "b", "c"])
    assert (web[0].title, web[0].text) == ("T", "body")
    assert bare == [Document("5", "T", "body")]
    assert many == [Document("a", "T", "body")] * 2


def test_a_server_error_is_tried_again(strange, caplog):
    strange.reply(b"busy", status=503)
    strange.reply(b"oops", status=500)
    strange.reply(GOOD)
    assert HttpRetriever(strange.url, retries=2).retrieve(["q"]) == FOUND
    assert len(strange.requests) == 3
    assert warnings(caplog) == []


def test_a_failing_server_gets_one_attempt_a_call_and_one_warning_until_it_answers(strange, caplog):
    strange.reply(b"oops", status=500)
    there = HttpRetriever(strange.url, retries=2)
    assert there.retrieve(["q"]) == [None]
    assert len(strange.requests) == 3
    assert there.retrieve(["q"]) == there.retrieve(["q"]) == [None]
    assert len(strange.requests) == 5
    assert ["HTTP status 500" in text for text in warnings(caplog)] == [True]
    strange.replies.clear()
    strange.reply(GOOD)
    assert there.retrieve(["q"]) == FOUND
    assert ["answers again" in text for text in warnings(caplog)] == [False, True]


@pytest.mark.parametrize("status", [301, 400, 404, 422])
def test_a_refusal_is_not_tried_again(strange, caplog, status):
    strange.reply(GOOD, status=status)
    assert HttpRetriever(strange.url, retries=2).retrieve(["q"]) == [None]
    assert len(strange.requests) == 1
    assert f"HTTP status {status}" in warnings(caplog)[0]


def test_one_bad_batch_costs_only_its_queries(strange, monkeypatch):
    monkeypatch.setattr(retriever_client, "_BATCH", 1)
    strange.reply(GOOD)
    strange.reply(b"no", status=400)
    strange.reply(GOOD)
    assert HttpRetriever(strange.url).retrieve(["a", "b", "c"]) == [*FOUND, None, *FOUND]


def test_a_slow_server_is_given_up(strange, caplog, monkeypatch):
    monkeypatch.setattr(retriever_client, "_BATCH", 1)
    strange.reply(GOOD, pause=30)
    there = HttpRetriever(strange.url, timeout=0.1, retries=1)
    before = time.monotonic()
    assert there.retrieve(["a", "b", "c"]) == [None, None, None]
    assert time.monotonic() - before < 30
    assert [requests["queries"] for requests in strange.requests] == [
        ["a"],
        ["a"],
    ]  # the rest is not tried
    assert "no answer within 0.1 s" in warnings(caplog)[0]


def test_an_answer_that_trickles_is_given_up(strange, caplog):
    strange.replies.append((200, [b"[1,"] * 1000, 0.05))
    before = time.monotonic()
    assert HttpRetriever(strange.url, timeout=0.2, retries=0).retrieve(["a"]) == [None]
    assert time.monotonic() - before < 50
    assert "no answer within 0.2 s" in warnings(caplog)[0]


def test_an_endless_answer_is_cut_off(strange, caplog, monkeypatch):
    monkeypatch.setattr(retriever_client, "_MAX_ANSWER", 1 << 20)
    strange.replies.append((200, [b" " * (1 << 18)] * 100, 0.0))
    assert HttpRetriever(strange.url, retries=0).retrieve(["a"]) == [None]
    assert "longer than 1 MiB" in warnings(caplog)[0]


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
