"""Refreshes that several browsers share: equal questions about the same rows are answered once."""

from __future__ import annotations

import gzip
import json
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from operator import is_not
from typing import Any

from flask import Flask, Response, request

from lldscope.core.errors import LldscopeError

from .data.run_registry import RunRegistry
from .data.snapshot import Snapshot
from .pages.story import story_key
from .security import QUESTIONS

MOST = 32  # answers that are kept


@dataclass
class _Answer:
    """The packed answer for these snapshots; the lock lets only one request make it."""

    snapshots: list[Snapshot]
    body: bytes | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


def share_refreshes(server: Flask, registry: RunRegistry) -> None:
    """Answer a refresh of charts as it was answered to another browser, if the snapshots are the
    same. The guard of the server stands before it."""
    make = server.ensure_sync(server.view_functions[QUESTIONS])
    answers: OrderedDict[str, _Answer] = OrderedDict()
    lock = threading.Lock()

    def answer() -> Any:
        try:
            question = _values_of_tick()
            snapshots = [registry.snapshot(name) for name in question["names"]]
            key = _key(question, snapshots)
        except (LldscopeError, KeyError, TypeError, ValueError, RecursionError):  # no refresh
            return make()
        with lock:
            shared = answers.get(key)
            # Not only of the same rows: a snapshot also says how old the last one is.
            if shared is None or any(map(is_not, shared.snapshots, snapshots)):
                shared = answers[key] = _Answer(snapshots)
            answers.move_to_end(key)
            while len(answers) > MOST:
                answers.popitem(last=False)
        with shared.lock:
            if shared.body is None:
                response = server.make_response(make())
                if response.status_code != 200:
                    return response
                shared.body = gzip.compress(response.get_data(), compresslevel=3)
        packed = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Response(shared.body, mimetype="application/json", headers=packed)

    server.view_functions[QUESTIONS] = answer


def _values_of_tick() -> dict[str, Any]:
    """The values that a tick of the page's clock sends, by the names of their stores. Raises
    KeyError, TypeError or ValueError for another question."""
    body = request.get_json()
    if body["changedPropIds"] != ["tick.data"] or "gzip" not in request.headers["Accept-Encoding"]:
        raise ValueError("no tick, or a client that cannot unpack")
    values = {part["id"]: part.get("value") for part in (*body["inputs"], *body["state"])}
    return values | {"outputs": body["outputs"]}


def _key(question: dict[str, Any], snapshots: list[Snapshot]) -> str:
    """The rest of the question, beside the snapshots: the view, and whether the browser has seen
    the present rows."""
    now = [*(s.version for s in snapshots), *map(story_key, snapshots)]
    is_seen = [a == b for a, b in zip(question["seen"], now, strict=False)]
    return json.dumps([{k: v for k, v in question.items() if k not in ("tick", "seen")}, is_seen])
