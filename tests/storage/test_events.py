"""Which checkpoint a run of events can go on from, and what its trainer calls it."""

from __future__ import annotations

import pytest

from lldscope.storage.events import checkpoint_number, last_checkpoint

EVENTS = [
    {"kind": "checkpoint", "step": 2}, {"kind": "resume", "step": 3}, {"kind": "checkpoint"},
    {"kind": "checkpoint", "step": 9}, {"kind": "checkpoint", "step": 5},
]


@pytest.mark.parametrize(("until", "step"), [(None, 9), (9, 9), (8, 5), (5, 5), (4, 2), (1, None)])
def test_the_last_checkpoint_is_the_highest_step_up_to_one_which_counts(until, step):
    event = last_checkpoint(EVENTS, until)
    assert (event and event["step"]) == step


@pytest.mark.parametrize(
    ("names", "number"),
    [({}, 7), ({"global_step": 70}, 70), ({"resume_from": 71}, 71), ({"global_step": "x"}, 7)],
)
def test_a_checkpoint_is_called_by_its_trainers_number(names, number):
    assert checkpoint_number({"kind": "checkpoint", "step": 7, **names}) == number
