"""Lines of a run: how they are added and read, its last checkpoint, and notes."""

from __future__ import annotations

from decimal import Decimal

import pytest

from lldscope.storage import json_files
from lldscope.storage.events import last_checkpoint
from lldscope.storage.notes import LONGEST, MOST_TAGS, about, is_note

EVENTS = [
    {"kind": "checkpoint", "step": 2}, {"kind": "resume", "step": 3}, {"kind": "checkpoint"},
    {"kind": "checkpoint", "step": 9}, {"kind": "checkpoint", "step": 5},
]


@pytest.mark.parametrize(("until", "step"), [(None, 9), (9, 9), (8, 5), (5, 5), (4, 2), (1, None)])
def test_the_last_checkpoint_is_the_highest_step_up_to_one_which_counts(until, step):
    assert last_checkpoint(EVENTS, until) == step


@pytest.mark.parametrize(
    ("names", "number"),
    [({}, 7), ({"global_step": 70}, 70), ({"resume_from": 71}, 71), ({"global_step": "x"}, 7)],
)
def test_a_checkpoint_is_called_by_its_trainers_number(names, number):
    assert last_checkpoint([{"kind": "checkpoint", "step": 7, **names}]) == number


@pytest.mark.parametrize(
    ("text", "steps", "n_damaged"),
    [("", [], 0), ('{"step": 1}\n', [1], 0), ('{"step": 1}\n{"st', [1], 0),
     ('{"step": 1}\n\0\0', [1], 1), ('{"st\n{"step": 2}\n', [2], 1)],
)
def test_a_line_is_added_behind_whatever_a_kill_left(tmp_path, text, steps, n_damaged):
    """A line that was cut off at the end never counted; anywhere else it is damage."""
    path = tmp_path / "events.jsonl"
    path.write_text(text)
    values, damage = json_files.read_lines(path)
    assert ([value["step"] for value in values], len(damage)) == (steps, n_damaged)
    json_files.append_line(path, {"step": 9})
    assert json_files.read_lines(path)[0][-1] == {"step": 9}


def test_numbers_without_a_fraction_stay_so_in_json():
    values = [Decimal(5), Decimal("0.5"), Decimal("5.0"), Decimal("NaN")]
    assert json_files.to_json(values) == '[5, 0.5, 5.0, "NaN"]'


ALARM = {"kind": "snooze", "rule": "a", "step": 5, "until": 1e9}
NO_NOTES = [
    7, {}, {"kind": "name", "text": 5}, {"kind": "tag", "text": "x" * (LONGEST["tag"] + 1)},
    *(ALARM | change for change in ({"kind": "else"}, {"rule": 7}, {"step": 5.0}, {"until": "x"})),
]


def test_what_is_a_note_of_a_run_or_an_alarm():
    notes = [ALARM, {"kind": "heard", "rule": "a"}, {"kind": "tag", "text": "x" * LONGEST["tag"]}]
    assert [*map(is_note, notes)] == [True] * len(notes)
    assert [*map(is_note, NO_NOTES)] == [False] * len(NO_NOTES)
    many = [{"kind": "tag", "text": f"{i}"} for i in range(MOST_TAGS + 5)]
    assert about(many)["tags"] == [note["text"] for note in many[:MOST_TAGS]]
