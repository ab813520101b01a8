"""The log of a recorder on an object store: its entries make the whole files, and are few."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from lldscope.storage import logs
from lldscope.storage.logs import LogName, log_name

MANIFEST = "manifest/a1-r0.jsonl"


def line(number: int, time: float = 0.0) -> str:
    return json.dumps({"n": number, "time": time}) + "\n"


def numbers(files: dict[str, bytes], file: str = MANIFEST) -> list[int]:
    return [json.loads(text)["n"] for text in files[file].splitlines()]


@given(st.integers(0, 600), st.randoms(use_true_random=False))
def test_the_entries_that_count_make_the_whole_files(n, choose):
    objects, counting = {}, {}
    for last in range(1, n + 1):
        name = logs.name_of(1, 0, last)
        spanned = [k for k in counting if k.first >= name.first]
        new = {MANIFEST: line(last), "run.json": str(last)}
        objects[name] = logs.join([*(counting.pop(k) for k in sorted(spanned)), new])
        counting[name] = objects[name]
        assert len(counting) <= 15 * 3, "at most fifteen of a level"
    # Some that were merged are there again, because a request was carried out late.
    late = {k: entry for k, entry in objects.items() if choose.random() < 0.3}
    files = logs.small_files(late | counting)
    if n:
        assert numbers(files) == [*range(1, n + 1)]
        assert files["run.json"] == str(n).encode()


@given(*[st.integers(0, 10**9 - 1)] * 4)
def test_a_name_says_what_is_in_it(attempt, rank, first, more):
    name = LogName(attempt, rank, first, min(first + more, 10**9 - 1))
    assert log_name(name.file) == name
    assert logs.claim_owner(logs.claim_path(attempt, rank).rpartition("/")[2]) == name.owner


def test_the_last_attempt_counts_and_events_are_in_the_order_of_their_times():
    entries = {
        LogName(1, 0, 9, 9): {"run.json": "1", "events.jsonl": line(1, 1.0) + line(4, 4.0)},
        LogName(1, 3, 1, 1): {"events.jsonl": line(2, 2.0)},
        LogName(2, 0, 1, 1): {"run.json": "2", "events.jsonl": line(3, 3.0)},
    }
    files = logs.small_files(entries)
    assert files["run.json"] == b"2"
    assert numbers(files, "events.jsonl") == [1, 2, 3, 4]


def test_a_lost_entry_leaves_a_gap_and_nothing_else():
    entries = {
        LogName(1, 0, 1, 16): {MANIFEST: line(1)}, LogName(1, 0, 33, 33): {MANIFEST: line(3)},
    }
    assert numbers(logs.small_files(entries)) == [1, 3]


def test_what_is_no_small_file_of_a_run_is_left_out():
    entry = {"../x": "a", "steps/a1-r0-000001.parquet": "b", "run.json": 3, MANIFEST: "c"}
    assert logs.parse(json.dumps(entry).encode()) == {MANIFEST: "c"}
