"""`lldscope retriever`: BM25 over a corpus behind Search-R1's HTTP protocol.

POST /retrieve {queries: [str], topk: int | null, return_scores: bool} -> {result: [[{document: {id,
contents}, score}]]}, bare documents without scores (search_r1/search/retrieval_server.py). Errors
are {detail: sentence} with a 4xx status. The command's help imports nothing heavy.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lldscope.core.errors import LldscopeError, missing_package
from lldscope.core.listening import listen
from lldscope.storage import json_files

from ..data.corpus import Document, contents

if TYPE_CHECKING:
    from .corpus_index import CorpusIndex

THREADS = 8
MAX_BODY = 16 << 20
"""Bytes: the 2,560 rollouts of a step of the paper, each with a query of 500 tokens, fit."""
MAX_QUERIES = 10_000
MAX_TOP_K = 100
_LOCAL = ("127.0.0.1", "localhost", "::1")

StartResponse = Callable[[str, list[tuple[str, str]]], Any]


@click.command(short_help="Serve a corpus to Search-R1 and others over HTTP.")
@click.argument("corpus", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve on.")
@click.option("--port", default=8000, show_default=True, help="Port; 0 picks a free one.")
@click.option(
    "--top-k",
    default=3,
    show_default=True,
    type=click.IntRange(1, MAX_TOP_K),
    help="Documents per query if the request does not say.",
)
def retriever(corpus: Path, host: str, port: int, top_k: int) -> None:
    """Serve BM25 over CORPUS with the protocol of Search-R1's retriever.

    CORPUS is a .jsonl file, one document per line: {id, contents} or {title, text}. Its index is
    built once and stored beside it.
    """
    try:
        from waitress.server import create_server

        from .corpus_index import open_index
    except ImportError as error:
        raise missing_package(error, "The retriever", "train") from None

    listener = listen(host, port)  # a taken port is reported before hours of indexing
    logging.getLogger("waitress").setLevel(logging.ERROR)
    click.echo(f"opening {corpus} …", err=True)
    index = open_index(corpus)
    server = create_server(
        make_app(index, top_k, local=host in _LOCAL),
        sockets=[listener],
        threads=THREADS,
        max_request_body_size=2 * MAX_BODY,
        ident="lldscope",
    )
    where = f"[{host}]" if ":" in host else host
    address = f"http://{where}:{listener.getsockname()[1]}/retrieve"
    click.echo(f"{len(index):,} documents at {address}; Ctrl-C ends it.", err=True)
    if host not in _LOCAL:
        click.echo("Everybody who reaches this port can read the corpus.", err=True)
    server.run()
    sys.exit(130)  # waitress returns when it is interrupted


class _Refused(Exception):
    """A request that cannot be answered, with its HTTP status."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


def make_app(
    index: CorpusIndex, top_k: int, local: bool
) -> Callable[[dict[str, Any], StartResponse], Iterable[bytes]]:
    """The protocol as a WSGI application. `local` accepts only requests to a loopback name, so that
    a web page which points its own name at 127.0.0.1 reads nothing."""

    def app(environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        status, answer = "200 OK", None
        try:
            host = re.sub(r":\d+$", "", environ.get("HTTP_HOST", "localhost")).strip("[]")
            if local and host not in _LOCAL:
                raise _Refused("403 Forbidden", "this retriever answers to localhost only")
            answer = _answer(index, top_k, _body(environ))
        except _Refused as error:
            status, answer = error.status, {"detail": str(error)}
        except LldscopeError as error:
            status, answer = "500 Internal Server Error", {"detail": str(error)}
        body = json.dumps(answer).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start(status, [*headers, ("Allow", "POST")] if status.startswith("405") else headers)
        return [body]

    return app


def _body(environ: dict[str, Any]) -> bytes:
    if environ["PATH_INFO"] != "/retrieve":
        raise _Refused("404 Not Found", "there is only POST /retrieve here")
    if environ["REQUEST_METHOD"] != "POST":
        raise _Refused("405 Method Not Allowed", "there is only POST /retrieve here")
    length = int(environ.get("CONTENT_LENGTH") or 0)  # waitress lets only numbers through
    if length > MAX_BODY:
        raise _Refused("413 Content Too Large", f"a request has at most {MAX_BODY} bytes")
    return environ["wsgi.input"].read(length)


def _answer(index: CorpusIndex, default_top_k: int, body: bytes) -> dict[str, Any]:
    try:
        request = json_files.parse(body)
    except ValueError:
        raise _Refused("400 Bad Request", "the request is not JSON") from None
    if not isinstance(request, dict):
        raise _Refused("400 Bad Request", "the request is not a JSON object")
    queries = request.get("queries")
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise _Refused("400 Bad Request", "'queries' must be a list of strings")
    if len(queries) > MAX_QUERIES:
        raise _Refused("413 Content Too Large", f"a request has at most {MAX_QUERIES} queries")
    top_k = request.get("topk") or default_top_k
    if isinstance(top_k, bool) or not isinstance(top_k, int) or not 0 < top_k <= MAX_TOP_K:
        raise _Refused("400 Bad Request", f"'topk' must be an integer from 0 to {MAX_TOP_K}")
    scores = request.get("return_scores") or False
    if not isinstance(scores, bool):
        raise _Refused("400 Bad Request", "'return_scores' must be true or false")

    def entry(document: Document, score: float) -> dict[str, Any]:
        bare = {"id": document.id, "contents": contents(document)}
        return {"document": bare, "score": score} if scores else bare

    return {"result": [[entry(*hit) for hit in index.search(q, top_k)] for q in queries]}
