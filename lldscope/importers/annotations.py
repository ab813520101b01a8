"""prime-rl's annotations of traces: what was learned about a rollout after it had been written.

prime-rl 65a1858 (`monitors/file/traces/update.py`, `trainer/rl/annotations.py`; pull requests 3444
and 3465 of August and September 2026): an update names its trace, and has an `info` and streams of
values over a branch, one for each token from the first message to the branch's last. They lie in
files of their own, `annotations/<producer>/NNNNN.jsonl[.zst]`, and may be larger than the memory;
so they wait in a temporary database until their traces come.
"""

from __future__ import annotations

import sqlite3
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from .reading import lines, parse_json
from .source import Findings

STREAMS = ("advantages", "trainer_logprobs", "entropies")
_MOST_VISITS = 200_000  # of messages on the way to the branches of a trace


class Annotations:
    """The updates by trace, in the order of writing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.says_what_was_trained = False  # whether any update names a step that it was sent to

    def of(self, trace: Any) -> list[dict[str, Any]]:
        query = "SELECT body FROM updates WHERE trace = ? ORDER BY rowid"
        result = self._connection.execute(query, (str(trace),))
        return [parse_json(zlib.decompress(body)) for (body,) in result]


@contextmanager
def gathered(paths: Sequence[Path], findings: Findings) -> Iterator[Annotations]:
    """The annotations in these files."""
    with (
        tempfile.TemporaryDirectory(prefix="lldscope-") as folder,
        closing(sqlite3.connect(f"{folder}/updates.db", isolation_level=None)) as connection,
    ):
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("CREATE TABLE updates (trace TEXT, body BLOB)")
        result = Annotations(connection)
        connection.execute("BEGIN")
        for path in paths:
            for line, is_complete in lines(path, findings):
                update = _update(line)
                if update is None:
                    findings.skip("annotations that are damaged or half written", is_complete or 1)
                    continue
                result.says_what_was_trained |= shipped(update) is not None
                row = (str(update["trace_id"]), zlib.compress(line, 1))
                connection.execute("INSERT INTO updates VALUES (?, ?)", row)
        connection.execute("COMMIT")
        connection.execute("CREATE INDEX of_trace ON updates (trace)")
        yield result


def _update(line: bytes) -> dict[str, Any] | None:
    try:
        update = parse_json(line)
    except (ValueError, RecursionError):
        return None
    return update if isinstance(update, dict) and "trace_id" in update else None


def shipped(update: Mapping[str, Any]) -> Any:
    """The step whose batch a trace went into, by an update of the orchestrator; None if it says
    nothing of that."""
    info = update.get("info")
    ship = info.get("ship") if isinstance(info, dict) and info.get("effective") else None
    return ship.get("step") if isinstance(ship, dict) else None


def fold(nodes: list[dict[str, Any]], updates: Sequence[Mapping[str, Any]]) -> None:
    """Put the streams of updates onto the messages of a trace, each at its sampled tokens; the
    newest wins. A message of which a sampled token has no value keeps what it has."""
    visits = 0
    leaves: list[int] | None = None
    for update in updates:
        branches = update.get("branches")
        for branch in branches if isinstance(branches, list) else ():
            if leaves is None:
                leaves = _leaves(nodes)
            at = branch.get("index") if isinstance(branch, dict) else None
            if not isinstance(at, int) or not 0 <= at < len(leaves):
                continue
            path = _path(nodes, leaves[at])
            visits += len(path)
            if visits > _MOST_VISITS:
                return
            for name in STREAMS:
                _spread(path, name, branch.get(name))


def _leaves(nodes: list[dict[str, Any]]) -> list[int]:
    """The messages that no other follows, in order: the ends of the branches."""
    parents = {p for node in nodes if type(p := node.get("parent")) is int}
    return [i for i in range(len(nodes)) if i not in parents]


def _path(nodes: list[dict[str, Any]], leaf: int) -> list[dict[str, Any]]:
    """The messages from the first to this one."""
    path: list[dict[str, Any]] = []
    indices: set[int] = set()
    at: Any = leaf
    while type(at) is int and 0 <= at < len(nodes) and at not in indices:
        indices.add(at)
        path.append(nodes[at])
        at = nodes[at].get("parent")
    return path[::-1]


def _spread(path: list[dict[str, Any]], name: str, stream: Any) -> None:
    if not isinstance(stream, list):
        return
    at = 0
    for node in path:
        ids, mask = node.get("token_ids"), node.get("mask")
        size = len(ids) if isinstance(ids, list) else 0
        part, at = stream[at : at + size], at + size
        if len(part) < size or not isinstance(mask, list):
            return
        values = [v for v, sampled in zip(part, mask, strict=False) if sampled]
        if values and None not in values:
            node[name] = values
