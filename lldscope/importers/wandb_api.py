"""`wandb://ENTITY/PROJECT/RUN`: the history of a run from W&B's server, every row of it.

The public API is GraphQL over HTTP; what is asked is what `Run.scan_history` of the package asks
(wandb 0.31, `apis/public/history.py`): pages of rows between two steps, each row as JSON. The
package is not needed. The key is that of `WANDB_API_KEY` or of `~/.netrc`, the server that of
`WANDB_BASE_URL`. Tested against a stand-in of the server, not against W&B's own.
"""

from __future__ import annotations

import base64
import json
import netrc
import os
import re
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib import request
from urllib.error import HTTPError
from urllib.parse import urlsplit

from ..core.errors import LldscopeError, UsageError
from ..core.version import __version__
from .limits import MAX_STEPS
from .reading import parsed

SCHEME = "wandb://"
SERVER = "https://api.wandb.ai"
SUFFIX = ".wandb-history.jsonl"
PAGE = 1000  # rows
TRIES = 4
SECONDS = 60.0  # for an answer
MOST_BYTES = 64 << 20  # of one
_NAME = re.compile(r"[\w.~ -]{1,128}")
_QUERY = """
query HistoryPage($entity: String!, $project: String!, $run: String!,
                  $minStep: Int64!, $maxStep: Int64!, $pageSize: Int!) {
  project(name: $project, entityName: $entity) {
    run(name: $run) {
      historyKeys
      history(minStep: $minStep, maxStep: $maxStep, samples: $pageSize)
    }
  }
}
"""


def fetched(source: str, folder: Path, wait: Callable[[float], None] = time.sleep) -> Path:
    """The history of a run as a file in a folder, one row a line; `source` begins with SCHEME.

    Raises UsageError for what is no such address, LldscopeError if the server does not give it.
    """
    names = source.removeprefix(SCHEME).strip("/").split("/")
    if len(names) != 3 or not all(map(_NAME.fullmatch, names)) or set(names) & {".", ".."}:
        raise UsageError(f"{source}: write {SCHEME}ENTITY/PROJECT/RUN, the run by its id.")
    path = folder.joinpath(*names[:2], names[2] + SUFFIX)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new.open("wb") as file:
            for row in _rows(dict(zip(("entity", "project", "run"), names, strict=True)), wait):
                file.write(row + b"\n")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return path


def _rows(run: dict[str, str], wait: Callable[[float], None]) -> Iterator[bytes]:
    """The rows of the history, as JSON; a page of steps need not hold as many rows."""
    first, last = 0, 0
    while first <= last:
        variables = run | {"minStep": first, "maxStep": first + PAGE, "pageSize": PAGE}
        found = _dig(_asked(variables, wait), "data", "project", "run")
        if not isinstance(found, dict):
            raise LldscopeError(
                f"W&B has no run {'/'.join(run.values())}, or the key may not see it. "
                "The run is named by its id, the last part of its page's address."
            )
        step = _dig(found, "historyKeys", "lastStep")
        last = min(step, MAX_STEPS) if isinstance(step, int) else 0
        rows = found.get("history")
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, str):
                yield row.replace("\n", " ").encode(errors="replace")
        first += PAGE


def _asked(variables: dict[str, Any], wait: Callable[[float], None]) -> Any:
    """The server's answer. What is temporary is tried again, after 1, 2, 4 … seconds."""
    server = os.environ.get("WANDB_BASE_URL") or SERVER
    body = json.dumps({"query": _QUERY, "variables": variables}).encode()
    question = request.Request(f"{server.rstrip('/')}/graphql", body, _headers(server))
    for attempt in range(TRIES):
        why = "it gave no answer"
        try:
            with request.urlopen(question, timeout=SECONDS) as answer:
                text = answer.read(MOST_BYTES + 1)
            if len(text) > MOST_BYTES:
                raise LldscopeError(f"An answer of {server} is longer than {MOST_BYTES >> 20} MB.")
            return parsed(text)
        except HTTPError as error:
            if error.code in (401, 403):
                raise LldscopeError(
                    f"{server} does not accept the key: set WANDB_API_KEY, or run `wandb login`."
                ) from None
            why = f"it answered {error.code}"
            if error.code != 429 and error.code < 500:
                break
        except (OSError, HTTPException) as error:
            why = str(getattr(error, "reason", None) or error or type(error).__name__)
        except (ValueError, RecursionError):
            why = "its answer is no JSON"
            break
        if attempt + 1 < TRIES:
            wait(2.0**attempt)
    raise LldscopeError(f"{server} did not give the history: {why}.")


def _headers(server: str) -> dict[str, str]:
    try:
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError
    except ValueError:
        raise UsageError(f"WANDB_BASE_URL is no address: {server}.") from None
    headers = {"Content-Type": "application/json", "User-Agent": f"lldscope/{__version__}"}
    if key := os.environ.get("WANDB_API_KEY") or _key_of(parts.hostname):
        headers["Authorization"] = "Basic " + base64.b64encode(f"api:{key}".encode()).decode()
    return headers


def _key_of(host: str) -> str | None:
    """The key that `wandb login` has kept."""
    try:
        known = netrc.netrc().authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return known[2] if known else None


def _dig(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
