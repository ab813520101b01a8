"""Client for a retriever that speaks Search-R1's `/retrieve`.

POST {queries, topk, return_scores: true} -> {result: one list per query of {document: {id?,
contents}, score}} (Search-R1, search_r1/llm_agent/generation.py). A retriever that is down, slow or
sends invalid answers makes searches fail visibly; it does not stop a training run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import httpx2

from lldscope.core.errors import LldscopeError, UsageError
from lldscope.storage import json_files

from ..data.corpus import Document, parse_document

_log = logging.getLogger(__name__)
_BATCH = 256
"""Queries per request, so that one bad answer costs one batch."""
_MAX_ANSWER = 64 << 20
_CONNECT = 5.0
"""Connection timeout in seconds."""
_FIRST_PAUSE = 0.5
"""Seconds before the first retry; each further pause is twice as long."""
_TRY_AGAIN = (408, 429)
"""Transient statuses below 500."""


class _Failed(Exception):
    """A request without documents: the reason, and whether a retry may help."""

    def __init__(self, why: str, *, again: bool = False) -> None:
        super().__init__(why)
        self.again = again


class HttpRetriever:
    """Queries a retriever over HTTP; thread-safe."""

    def __init__(
        self, url: str, *, top_k: int = 3, timeout: float = 30.0, retries: int = 2
    ) -> None:
        """`timeout` limits both the silence and the whole answer of one request, in seconds;
        `retries` is the number of further attempts. A URL without a path gets `/retrieve`. Raises
        UsageError for an invalid URL."""
        self._url = _address(url)
        self._shown = str(self._url.copy_with(userinfo=b"", query=None))
        self._top_k = top_k
        self._timeout = timeout
        self._retries = retries
        # No proxy from the environment: it would catch a retriever on this machine too.
        waits = httpx2.Timeout(timeout, connect=min(_CONNECT, timeout))
        self._client = httpx2.Client(timeout=waits, trust_env=False)
        self._is_down = False

    def check(self) -> None:
        """Send a test query. Raises LldscopeError with the reason if no documents come back: then
        every search of a run would fail."""
        try:
            self._answer(["capital"])
        except _Failed as error:
            raise LldscopeError(
                f"retriever {self._shown}: {error}. Start it (lldscope retriever CORPUS serves a "
                "corpus), or correct retriever_url."
            ) from None

    def retrieve(self, queries: Sequence[str]) -> list[list[Document] | None]:
        """The documents for each query; None if the retriever failed. Without queries there is no
        request."""
        results: dict[str, list[Document] | None] = dict.fromkeys(queries)
        different, failure = list(results), None
        # Known to be down: one attempt per call finds out whether that is over.
        attempts = 1 if self._is_down else 1 + self._retries
        for start in range(0, len(different), _BATCH):
            batch = different[start : start + _BATCH]
            try:
                results.update(zip(batch, self._ask(batch, attempts), strict=True))
            except _Failed as error:
                failure = error
                if error.again:  # the others would only wait as long
                    break
        if different and (failure is not None) != self._is_down:
            # Once when an outage begins and once when it is over, not at every call in between.
            self._is_down = failure is not None
            news = f"{failure}. Searches fail (tool_ok false) until it is back"
            _log.warning("retriever %s: %s.", self._shown, news if failure else "it answers again")
        return [results[query] for query in queries]

    def _ask(self, queries: list[str], attempts: int) -> list[list[Document]]:
        for attempt in range(attempts - 1):
            try:
                return self._answer(queries)
            except _Failed as error:
                if not error.again:
                    raise
                time.sleep(_FIRST_PAUSE * 2**attempt)
        return self._answer(queries)

    def _answer(self, queries: list[str]) -> list[list[Document]]:
        request = {"queries": queries, "topk": self._top_k, "return_scores": True}
        try:
            with self._client.stream(
                "POST", self._url, content=json.dumps(request).encode(),
                headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
            ) as response:
                status = response.status_code
                if status != 200:
                    again = status >= 500 or status in _TRY_AGAIN
                    raise _Failed(f"it answers with HTTP status {status}", again=again)
                body = self._body(response)
        except httpx2.TimeoutException:
            raise self._too_slow() from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            why = f"it cannot be reached ({error or type(error).__name__})"
            raise _Failed(why, again=True) from None
        try:
            return _documents(json_files.parse(body), len(queries), self._top_k)
        except ValueError as error:
            raise _Failed(f"its answer is not what Search-R1 sends ({error})") from None

    def _body(self, response: httpx2.Response) -> bytes:
        """Read the answer within the limits of size and time."""
        body = bytearray()
        deadline = time.monotonic() + self._timeout
        for part in response.iter_raw():
            body += part
            if len(body) > _MAX_ANSWER:
                raise _Failed(f"its answer is longer than {_MAX_ANSWER >> 20} MiB")
            if time.monotonic() > deadline:
                raise self._too_slow()
        return bytes(body)

    def _too_slow(self) -> _Failed:
        return _Failed(f"no answer within {self._timeout:g} s", again=True)


def _address(url: str) -> httpx2.URL:
    try:
        result = httpx2.URL(url)
    except httpx2.InvalidURL:
        result = httpx2.URL("")
    if result.scheme not in ("http", "https") or not result.host or (result.port or 0) > 65535:
        raise UsageError(
            f"retriever address {url!r}: write it like http://127.0.0.1:8000/retrieve."
        )
    return result.copy_with(path="/retrieve") if result.path in ("", "/") else result


def _documents(answer: Any, n_queries: int, top_k: int) -> list[list[Document]]:
    """The documents of an answer. Raises ValueError with the fault."""
    result = answer.get("result") if isinstance(answer, dict) else None
    if not (isinstance(result, list) and all(isinstance(entries, list) for entries in result)):
        raise ValueError("there is no list of lists 'result'")
    if len(result) != n_queries:
        raise ValueError(f"{len(result)} results for {n_queries} queries")
    return [
        [
            parse_document(e["document"] if isinstance(e, dict) and "document" in e else e)
            for e in entries[:top_k]
        ]
        for entries in result
    ]
