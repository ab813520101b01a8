"""What the post-mortem says of kept responses that lost likelihood."""

from __future__ import annotations

import numpy as np

import lldscope
from lldscope.report import post_mortem
from lldscope.report.markdown import markdown


def recorded(path, retained: bool = True) -> lldscope.Run:
    """Two questions a step; of step 1 response 0 is kept, and loses most in step 3."""
    losses = {2: -0.5, 3: -4.0, 4: 1.0}
    before = -2.0
    with lldscope.Recorder(path) as r:
        for step in range(5):
            r.responses(
                step=step, response_id=[0, 1, 2, 3], group_id=[0, 0, 1, 1], data_source="nq",
                reward=[1.0, 0.0, 1.0, 0.0], correct=[True, False, True, False],
                text=["he said\n<b>Paris</b>", None, None, None],
            )
            r.actions(
                step=step, response_id=[0, 1, 2, 3], action_index=0, kind="answer", n_tokens=10,
                logp_old_sum=-2.0, logp_post_sum=[-1.5, -3.0, -1.5, -3.0],
            )
            if step in losses and retained:
                after = before + losses[step]
                r.retention(
                    step=step, age=step - 1, response_id=0, action_index=0, n_tokens=10,
                    logp_old_sum=-2.0, logp_previous_sum=before if step > 2 else None,
                    logp_post_sum=after,
                )
                before = after
            r.step(step=step, n_responses=4, reward_sum=2.0, n_correct=2)
    return lldscope.open_run(path)


def test_a_response_is_named_with_the_step_that_cost_it_most(tmp_path):
    facts = post_mortem(recorded(tmp_path / "run"))
    (response,) = facts.forgotten
    assert (response.sampled, response.response_id, response.data_source) == (1, 0, "nq")
    assert (response.until, response.lost) == (4, -3.5)
    assert (response.worst, response.worst_change, response.gained) == (3, -4.0, 0.5)
    assert response.questions_since == 6  # two in each of the steps 2, 3 and 4
    assert np.isclose(response.step_kl, 0.025)  # (−0.5 + 1.0) / 2 nats lost in 10 tokens
    page = markdown(facts)
    row = next(line for line in page.splitlines() if line.startswith("| 1 | 0, nq"))
    assert "| 3 | −4 | +0.5 |" in row
    assert "<b>" not in row


def test_without_retention_the_section_is_left_out(tmp_path):
    facts = post_mortem(recorded(tmp_path / "run", retained=False))
    assert facts.forgotten == []
    assert "forgotten" not in markdown(facts)
