"""How a recorder's small files lie on an object store, which can neither append nor rename.

    RUN/log/a1-r0-000017.json          entry 17 of attempt 1, rank 0: what changed since the 16th
    RUN/log/a1-r0-000001-000016.json   its entries 1 to 16 as one
    RUN/log/claim-a1-r0.json           who records as rank 0 of attempt 1

An entry is a JSON object: file of a run directory → the lines that were appended to it, or, of
run.json and heartbeats, its whole content. No object is ever changed: the same name always has the
same content. So a request that the store carries out late or twice changes nothing. Sixteen entries
of a level become one of the next, as parts do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from . import json_files
from .layout import ALERTS_FILE, EVENTS_FILE, is_small_file

LOG_DIR = "log"
FAN_IN = 16
Entry = dict[str, str]  # file of a run directory → text

_NAME = re.compile(r"a(\d{1,9})-r(\d{1,9})-(\d{1,9})(?:-(\d{1,9}))?\.json")
_CLAIM = re.compile(r"claim-a(\d{1,9})-r(\d{1,9})\.json")


@dataclass(frozen=True, order=True)
class LogName:
    """The entries `first` to `last` of a rank in an attempt."""

    attempt: int
    rank: int
    first: int
    last: int

    @property
    def owner(self) -> tuple[int, int]:
        """(attempt, rank)"""
        return self.attempt, self.rank

    @property
    def file(self) -> str:
        last = "" if self.last == self.first else f"-{self.last:06d}"
        return f"a{self.attempt}-r{self.rank}-{self.first:06d}{last}.json"

    @property
    def path(self) -> str:
        return f"{LOG_DIR}/{self.file}"


def log_name(file: str) -> LogName | None:
    match = _NAME.fullmatch(file)
    if match is None:
        return None
    attempt, rank, first, last = match.groups()
    return LogName(int(attempt), int(rank), int(first), int(last or first))


def claim_path(attempt: int, rank: int) -> str:
    return f"{LOG_DIR}/claim-a{attempt}-r{rank}.json"


def claim_owner(file: str) -> tuple[int, int] | None:
    """(attempt, rank) of a claim; None if it is none."""
    match = _CLAIM.fullmatch(file)
    return (int(match[1]), int(match[2])) if match else None


def name_of(attempt: int, rank: int, last: int) -> LogName:
    """Where entry `last` goes: with the fifteen of its level before it, if it is the sixteenth."""
    size = 1
    while last % (size * FAN_IN) == 0:
        size *= FAN_IN
    return LogName(attempt, rank, last - size + 1, last)


def covering(names: Iterable[LogName]) -> list[LogName]:
    """The objects that together have every entry, in order: those that no other one spans."""
    result: list[LogName] = []
    for name in sorted(names, key=lambda n: (n.owner, n.first, -n.last)):
        if not result or (result[-1].owner, result[-1].last) < (name.owner, name.last):
            result.append(name)
    return result


def parse(content: bytes) -> Entry:
    """The entry in an object; what is no small file of a run is left out. Raises ValueError."""
    value = json_files.parse(content)
    if not isinstance(value, dict):
        raise ValueError("it is not an entry of a log")
    return {k: v for k, v in value.items() if is_small_file(k) and isinstance(v, str)}


def join(entries: Iterable[Entry]) -> Entry:
    """Entries in their order as one."""
    whole: dict[str, list[str]] = {}
    for entry in entries:
        for file, text in entry.items():
            texts = whole.setdefault(file, [])
            if not file.endswith(".jsonl"):
                texts.clear()
            texts.append(text)
    return {file: "".join(texts) for file, texts in whole.items()}


def small_files(entries: Mapping[LogName, Entry]) -> dict[str, bytes]:
    """The small files of a run, from the entries of all its recorders: lines of several recorders
    are in the order of their times, and of a file as a whole that of the last attempt counts."""
    whole = join(entries[name] for name in covering(entries))
    for file in {EVENTS_FILE, ALERTS_FILE} & whole.keys():
        lines = sorted(whole[file].split("\n")[:-1], key=_time)
        whole[file] = "".join(f"{line}\n" for line in lines)
    return {file: text.encode() for file, text in whole.items()}


def _time(line: str) -> float:
    try:
        time = json_files.parse(line.encode())["time"]
        return float(time) if json_files.is_time(time) else 0.0
    except (ValueError, KeyError, TypeError):
        return 0.0
