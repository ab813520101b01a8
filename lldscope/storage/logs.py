"""How a recorder's small files lie on an object store, which can neither append nor rename.

    RUN/log/manifest-a1-r0-000017.jsonl          line 17 of manifest/a1-r0.jsonl
    RUN/log/manifest-a1-r0-000001-000016.jsonl   its lines 1 to 16
    RUN/log/stream-events-a1-r0-000003.jsonl     likewise of this owner's events.jsonl
    RUN/log/heartbeat-a1-r0-000042.json          heartbeat/r0.json as a whole: the 42nd version
    RUN/log/run-a1-r0-000002.json                likewise run.json
    RUN/log/claim-a1-r0.json                     who records as rank 0 of attempt 1

No object is ever changed: the same name always has the same content. So a request that the store
carries out late or twice changes nothing. New lines are a new object; sixteen of a level become one
of the next, as parts do. A reader takes the objects that reach furthest, and of versions the
highest. A store lists names in their order: what speaks of a file (heartbeats of manifests,
manifests of events) comes before that file, so that it is never the newer of the two.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from . import json_files
from .heartbeats import HEARTBEAT_DIR
from .layout import ALERTS_FILE, EVENTS_FILE, RUN_FILE
from .manifest import MANIFEST_DIR

LOG_DIR = "log"
HEARTBEAT, MANIFEST, RUN, EVENTS, ALERTS = (
    "heartbeat", "manifest", "run", "stream-events", "stream-alerts"
)
STATES = (HEARTBEAT, RUN)  # written as a whole
FAN_IN = 16

_NAME = re.compile(
    r"(heartbeat|manifest|run|stream-events|stream-alerts)-a(\d{1,9})-r(\d{1,9})"
    r"-(\d{1,9})(?:-(\d{1,9}))?\.jsonl?"
)
_CLAIM = re.compile(r"claim-a(\d{1,9})-r(\d{1,9})\.json")


@dataclass(frozen=True, order=True)
class LogName:
    """The lines `first` to `last` of an owner's file; of a state its version, which is both."""

    kind: str
    attempt: int
    rank: int
    first: int
    last: int

    @property
    def file(self) -> str:
        last = "" if self.last == self.first else f"-{self.last:06d}"
        suffix = "json" if self.kind in STATES else "jsonl"
        return f"{self.kind}-a{self.attempt}-r{self.rank}-{self.first:06d}{last}.{suffix}"

    @property
    def path(self) -> str:
        return f"{LOG_DIR}/{self.file}"

    @property
    def target(self) -> str:
        """The file of a run directory that it is a piece of."""
        return {
            HEARTBEAT: f"{HEARTBEAT_DIR}/r{self.rank}.json",
            MANIFEST: f"{MANIFEST_DIR}/a{self.attempt}-r{self.rank}.jsonl",
            RUN: RUN_FILE,
            EVENTS: EVENTS_FILE,
            ALERTS: ALERTS_FILE,
        }[self.kind]

    def supersedes(self, other: LogName) -> bool:
        """Whether a reader that has this object has no use for the other one."""
        if self == other or (self.kind, self.attempt, self.rank) != (
            other.kind, other.attempt, other.rank,
        ):
            return False
        if self.kind in STATES:
            return self.last > other.last
        return self.first <= other.first and other.last <= self.last


def log_name(file: str) -> LogName | None:
    match = _NAME.fullmatch(file)
    if match is None:
        return None
    kind, attempt, rank, first, last = match.groups()
    return LogName(kind, int(attempt), int(rank), int(first), int(last or first))


def claim_file(attempt: int, rank: int) -> str:
    return f"claim-a{attempt}-r{rank}.json"


def claim_owner(file: str) -> tuple[int, int] | None:
    """(attempt, rank) of a claim; None if it is none."""
    match = _CLAIM.fullmatch(file)
    return (int(match[1]), int(match[2])) if match else None


def next_first(count: int, last: int) -> int:
    """The first line of the object that follows `count` lines and ends with line `last`: one of a
    level is written anew with the fifteen before it, where it is the sixteenth."""
    size = 1
    while last // (size * FAN_IN) > count // (size * FAN_IN):
        size *= FAN_IN
    return count // size * size + 1


def covering(names: Iterable[LogName]) -> list[LogName]:
    """Of the objects with lines of one file of one owner, those that together have all of them."""
    result: list[LogName] = []
    for name in sorted(names, key=lambda n: (n.first, -n.last)):
        if not result or name.last > result[-1].last:
            while len(result) > 1 and name.first <= result[-2].last + 1:
                result.pop()
            result.append(name)
    return result


def sources(names: Iterable[LogName]) -> dict[str, list[LogName]]:
    """File of a run directory → the objects that it is made of, in order."""
    by_target: dict[str, list[LogName]] = defaultdict(list)
    for name in names:
        by_target[name.target].append(name)
    result = {}
    for target, pieces in by_target.items():
        if pieces[0].kind in STATES:
            result[target] = [max(pieces, key=lambda n: (n.attempt, n.last))]
            continue
        owners: dict[tuple[int, int], list[LogName]] = defaultdict(list)
        for name in pieces:
            owners[name.attempt, name.rank].append(name)
        result[target] = [n for owner in sorted(owners) for n in covering(owners[owner])]
    return result


def join_pieces(pieces: Iterable[tuple[LogName, bytes]]) -> bytes:
    """The content of a file of its pieces, in the order that `sources` gives; of several owners'
    lines in the order of their times."""
    pieces = list(pieces)
    if pieces[0][0].kind in STATES:
        return pieces[0][1]
    lines: list[bytes] = []
    owner, last = None, 0
    for name, content in pieces:
        if owner != (name.attempt, name.rank):
            owner, last = (name.attempt, name.rank), 0
        new = content.split(b"\n")[:-1][max(0, last + 1 - name.first) :]
        lines += new
        last = max(last, name.last)
    if pieces[0][0].kind in (EVENTS, ALERTS):
        lines.sort(key=_time)
    return b"".join(line + b"\n" for line in lines)


def _time(line: bytes) -> float:
    try:
        time = json_files.parse(line)["time"]
        return float(time) if json_files.is_time(time) else 0.0
    except (ValueError, KeyError, TypeError):
        return 0.0
