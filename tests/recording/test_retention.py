"""Retention: which responses are kept, when they are due, and the rows that come of it."""

from __future__ import annotations

import io

import numpy as np
import pytest

from lldscope.recording.batch import Batch, Scores
from lldscope.recording.retention import Retention


def batch(step: int, n_groups: int = 3, size: int = 4, seed: int = 0) -> Batch:
    """Groups of `size` rollouts with two actions and a tool text between; the first group is all
    correct, the others are mixed."""
    rng = np.random.default_rng(seed + step)
    n, width = n_groups * size, 7
    mask = np.tile([1, 1, 0, 0, 1, 1, 1], (n, 1))
    lengths = rng.integers(5, width + 1, n)
    mask[np.arange(width) >= lengths[:, None]] = 0
    return Batch(
        step=step,
        mask=mask,
        prompt_ids=[[100 + i, 101] for i in range(n)],
        completion_ids=[list(range(length)) for length in lengths],
        rewards=rng.random(n),
        correct=[i < size or i % 2 == 0 for i in range(n)],
        group_ids=np.repeat(np.arange(n_groups), size),
        old=Scores(-rng.random((n, width)) * mask, np.arange(n) != size),
    )


def keep(*steps: int, responses: int = 100, n_groups: int = 3) -> Retention:
    store = Retention(responses)
    for step in steps:
        store.keep(batch(step, n_groups))
    return store


def test_correct_responses_of_mixed_groups_are_kept_if_they_were_scored():
    # Rows 4, 6, 8, 10 are correct and of mixed groups; row 4 was not scored.
    assert [r.response_id for r in keep(0).due(1)] == [6, 8, 10]
    assert keep(0, responses=0).due(1) == []


def test_a_kept_response_has_its_tokens_and_the_sums_of_its_actions():
    b = batch(0)
    for r in keep(0).due(1):
        assert r.ids.tolist() == [*b.prompt_ids[r.response_id], *b.completion_ids[r.response_id]]
        assert r.mask.tolist() == [0, 0, *b.mask[r.response_id, : len(r.ids) - 2]]
        old = b.old.values[r.response_id]
        assert r.old == pytest.approx([old[:2].sum(), old[4:].sum()])


def test_the_choice_is_limited_and_depends_on_the_step_alone():
    first, again = ([r.response_id for r in keep(0, responses=3, n_groups=9).due(1)] for _ in "ab")
    assert first == again
    assert len(first) == 3
    assert [r.response_id for r in keep(1, responses=3, n_groups=9).due(2)] != first


def test_responses_are_due_in_each_of_the_next_steps_and_then_forgotten():
    store = Retention(2)
    for step in range(40):
        due = [r.step for r in store.due(step)]
        assert due == [s for s in range(max(0, step - 16), step) for _ in "ab"]
        store.keep(batch(step))
    assert sum(name.endswith(".ids") for name in store.state()) == 2 * 16


def test_rows_hold_sums_by_action_and_null_for_what_could_not_be_scored():
    store = keep(0, responses=2)
    first, second = store.due(1)
    logps = np.linspace(-2, -1, len(first.ids))
    rows = store.rows(1, [logps, None])
    assert rows["age"] == [1, 1, 1, 1]
    assert rows["response_id"] == [first.response_id] * 2 + [second.response_id] * 2
    assert rows["action_index"] == [0, 1, 0, 1]
    after = [logps[first.action == k].sum() for k in (0, 1)]
    assert rows["logp_post_sum"] == [*map(pytest.approx, after), None, None]
    assert rows["logp_old_sum"] == [*first.old, *second.old]
    assert rows["logp_previous_sum"] == [None] * 4
    assert rows["n_tokens"][:2] == [2, int(first.mask.sum()) - 2]
    later = store.rows(2, [logps + 1, logps[: len(second.ids)]])
    assert later["age"] == [2, 2, 2, 2]
    assert later["logp_previous_sum"] == [*map(pytest.approx, after), None, None]
    skipped = store.rows(4, [logps, None])
    assert skipped["logp_previous_sum"] == [None] * 4  # step 3 was not scored


def test_a_checkpoint_brings_everything_back():
    store = keep(0, 1, 2, responses=3)
    store.rows(3, [np.full(len(r.ids), -1.0) for r in store.due(3)])
    file = io.BytesIO()
    np.savez(file, **store.state())
    file.seek(0)
    again = Retention(3)
    with np.load(file, allow_pickle=False) as state:
        again.restore(state)
    for a, b in zip(store.due(4), again.due(4), strict=True):
        assert (a.step, a.response_id, a.scored) == (b.step, b.response_id, b.scored)
        for name in ("ids", "action", "old", "previous"):
            assert np.array_equal(getattr(a, name), getattr(b, name))
    empty = Retention(3)
    empty.restore(Retention(3).state())
    assert empty.due(10) == []


def test_after_going_back_to_an_earlier_step_what_came_later_is_not_due():
    store = keep(0, 1, 2, 3)
    assert {r.step for r in store.due(2)} == {0, 1}
