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


def test_correct_responses_of_mixed_groups_are_kept_if_they_were_scored():
    kept = Retention(100, horizons=(1,))
    kept.keep(batch(0))
    # Rows 4, 6, 8, 10 are correct and of mixed groups; row 4 was not scored.
    assert [r.response_id for r in kept.due(1)] == [6, 8, 10]


def test_a_kept_response_has_its_tokens_and_the_sums_of_its_actions():
    b = batch(0)
    kept = Retention(100, horizons=(1,))
    kept.keep(b)
    for r in kept.due(1):
        assert r.ids.tolist() == [*b.prompt_ids[r.response_id], *b.completion_ids[r.response_id]]
        assert r.mask.tolist() == [0, 0, *b.mask[r.response_id, : len(r.ids) - 2]]
        old = b.old.values[r.response_id]
        assert r.old == pytest.approx([old[:2].sum(), old[4:].sum()])


def test_the_choice_is_limited_and_depends_on_the_step_alone():
    chosen = []
    for _ in range(2):
        kept = Retention(3, horizons=(1,))
        kept.keep(batch(0, n_groups=9))
        chosen.append([r.response_id for r in kept.due(1)])
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 3
    kept = Retention(3, horizons=(1,))
    kept.keep(batch(1, n_groups=9))
    assert [r.response_id for r in kept.due(2)] != chosen[0]


def test_each_horizon_is_due_once_and_what_is_over_is_forgotten():
    kept = Retention(2, horizons=(2, 4))
    seen = []
    for step in range(8):
        seen.append([(r.step, step - r.step) for r in kept.due(step)])
        kept.keep(batch(step))
    assert seen[5] == [(3, 2), (3, 2), (1, 4), (1, 4)]
    assert len(kept.state()["responses"]) == 2 * 4  # steps 4 to 7


def test_rows_hold_sums_by_action_and_null_for_what_could_not_be_scored():
    kept = Retention(2, horizons=(1,))
    kept.keep(batch(0))
    first, second = kept.due(1)
    logps = np.linspace(-2, -1, len(first.ids))
    rows = kept.rows(1, [logps, None])
    assert rows["horizon"] == [1, 1, 1, 1]
    assert rows["response_id"] == [first.response_id] * 2 + [second.response_id] * 2
    assert rows["action_index"] == [0, 1, 0, 1]
    written = [logps[first.action == k].sum() for k in (0, 1)]
    assert rows["logp_post_sum"] == [*map(pytest.approx, written), None, None]
    assert rows["logp_old_sum"] == [*first.old, *second.old]
    assert rows["n_tokens"][:2] == [2, int(first.mask.sum()) - 2]


def test_a_checkpoint_brings_everything_back():
    kept = Retention(3, horizons=(2, 3))
    for step in range(3):
        kept.keep(batch(step))
    file = io.BytesIO()
    np.savez(file, **kept.state())
    file.seek(0)
    again = Retention(3, horizons=(2, 3))
    with np.load(file, allow_pickle=False) as state:
        again.restore(state)
    for a, b in zip(kept.due(3), again.due(3), strict=True):
        assert (a.step, a.response_id) == (b.step, b.response_id)
        for name in ("ids", "action", "old"):
            assert np.array_equal(getattr(a, name), getattr(b, name))
    empty = Retention(3)
    empty.restore(Retention(3).state())
    assert empty.due(10) == []


def test_a_state_that_does_not_fit_together_is_refused():
    kept = Retention(3, horizons=(1,))
    kept.keep(batch(0))
    with pytest.raises(ValueError, match="do not fit"):
        kept.restore(kept.state() | {"ids": np.zeros(3, np.int32)})


def test_zero_keeps_nothing():
    kept = Retention(0, horizons=(1,))
    kept.keep(batch(0))
    assert kept.due(1) == []
