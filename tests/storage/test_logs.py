"""Files in pieces on an object store: the pieces make the whole file, and they are few."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from lldscope.storage import logs
from lldscope.storage.logs import LogName, log_name


def line(number: int) -> bytes:
    return json.dumps({"n": number, "time": number}).encode()


def piece(first: int, last: int, kind: str = logs.MANIFEST, rank: int = 0):
    name = LogName(kind, 1, rank, first, last)
    return name, b"".join(line(n) + b"\n" for n in range(first, last + 1))


def whole(content: bytes) -> list[int]:
    return [json.loads(text)["n"] for text in content.splitlines()]


@given(st.lists(st.integers(1, 40), max_size=60), st.randoms(use_true_random=False))
def test_the_pieces_that_count_make_the_whole_file(appended, choose):
    count, sent_pieces, pieces = 0, {}, {}
    for n in appended:
        name, content = piece(logs.next_first(count, count + n), count + n)
        pieces = {k: c for k, c in pieces.items() if not name.supersedes(k)} | {name: content}
        sent_pieces[name] = content
        count += n
    # Some that were superseded are there again, because a request was carried out late.
    again = {k: c for k, c in sent_pieces.items() if choose.random() < 0.3}
    there = pieces | again
    if there:
        ((target, order),) = logs.sources(there).items()
        assert target == "manifest/a1-r0.jsonl"
        assert whole(logs.join_pieces((k, there[k]) for k in order)) == list(range(1, count + 1))


def test_there_are_at_most_fifteen_pieces_of_a_level():
    names: set[LogName] = set()
    total = 0
    for last in range(1, 5001):
        name = LogName(logs.MANIFEST, 1, 0, logs.next_first(last - 1, last), last)
        total += name.last - name.first + 1
        names = {n for n in names if not name.supersedes(n)} | {name}
        assert len(names) <= 15 * 4
    assert total / 5000 <= 4, "a line is written once a level"


@given(st.sampled_from((*logs.STATES, logs.MANIFEST, logs.EVENTS, logs.ALERTS)),
       *[st.integers(0, 10**9 - 1)] * 4)
def test_a_name_says_what_is_in_it(kind, attempt, rank, first, more):
    last = first if kind in logs.STATES else min(first + more, 10**9 - 1)
    name = LogName(kind, attempt, rank, first, last)
    assert log_name(name.file) == name


def test_of_versions_the_highest_of_the_last_attempt_counts():
    names = [
        LogName(logs.RUN, 1, 0, 9, 9), LogName(logs.RUN, 2, 0, 1, 1),
        LogName(logs.HEARTBEAT, 1, 3, 2, 2), LogName(logs.HEARTBEAT, 1, 3, 10, 10),
    ]
    assert logs.sources(names) == {"run.json": [names[1]], "heartbeat/r3.json": [names[3]]}


def test_lines_of_several_ranks_are_in_the_order_of_their_times():
    pieces = dict([piece(1, 4, logs.EVENTS), piece(2, 3, logs.EVENTS, rank=1)])
    order = logs.sources(pieces)["events.jsonl"]
    assert whole(logs.join_pieces((n, pieces[n]) for n in order)) == [1, 2, 2, 3, 3, 4]


def test_a_lost_piece_leaves_a_gap_and_nothing_else():
    pieces = dict([piece(1, 16), piece(33, 33)])
    order = logs.sources(pieces)["manifest/a1-r0.jsonl"]
    assert whole(logs.join_pieces((n, pieces[n]) for n in order)) == [*range(1, 17), 33]


def test_a_store_lists_what_speaks_of_a_file_before_it():
    assert sorted((logs.EVENTS, logs.ALERTS, logs.RUN, logs.MANIFEST, logs.HEARTBEAT))[:2] == [
        logs.HEARTBEAT, logs.MANIFEST,
    ]
