"""ms-swift's own GRPO, recorded: rows against saved weights, and a training that does not
change by it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import swift_tiny
import torch
from transformers import Qwen2ForCausalLM, TrainerCallback

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.integrations.common import alarms as alarms_module
from lldscope.integrations.swift import instrument
from lldscope.monitor.health import check

pytestmark = pytest.mark.filterwarnings("ignore")


class Keep(TrainerCallback):
    def __init__(self, trainer):
        self.states = [copy.deepcopy(trainer.model.state_dict())]
        self.trainer = trainer

    def on_step_end(self, *args, **kwargs):
        self.states.append(copy.deepcopy(self.trainer.model.state_dict()))


def logps(trainer, state, ids):
    model = Qwen2ForCausalLM(trainer.model.config)
    model.load_state_dict(state)
    with torch.no_grad():
        logits = model.eval()(torch.tensor([ids])).logits[0].double() / trainer.temperature
    table = torch.log_softmax(logits, -1)
    return [None] + [table[k, token].item() for k, token in enumerate(ids[1:])]


@pytest.mark.parametrize(
    ("changes", "steps"),
    [({}, 2), ({"gradient_accumulation_steps": 2, "max_steps": 2}, 2), ({"beta": 0.1}, 2)],
    ids=["two updates a batch", "one update a batch", "a reference"],
)
def test_a_rollout_batch_is_a_step(tmp_path, monkeypatch, changes, steps):
    monkeypatch.setattr("lldscope.recording.columns.TEXTS_PER_STEP", 8)
    copies, ends = [], []

    def recorded(trainer):
        instrument(trainer, tmp_path / "run", tokens_every=1)
        copies.append(Keep(trainer))
        trainer.add_callback(copies[0])

    for name, then in (("alone", lambda trainer: None), ("recorded", recorded)):
        trainer = swift_tiny.train(tmp_path / name, then, **changes)
        flat = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        ends.append((flat, torch.get_rng_state()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])

    run = lldscope.open_run(tmp_path / "run")
    assert run.info["status"] == "finished"
    assert run.info["trainer"].startswith("ms-swift 4.")
    assert list(check(run).missing) == ["importance ratios and clipped tokens"]
    assert check(run).dropped == {}
    signals = run.signals()
    assert signals["n_responses"].tolist() == [8] * steps
    assert signals[["entropy", "reward", "lr"]].notna().all(axis=None)
    norms = run.sql("SELECT grad_norm FROM updates ORDER BY step, update")["grad_norm"]
    logged = [float(e["grad_norm"]) for e in trainer.state.log_history if "grad_norm" in e]
    assert norms.tolist() == pytest.approx(logged, rel=1e-4, abs=1e-6)
    sizes = run.sql("SELECT count(*) AS n FROM responses GROUP BY step, group_id")["n"]
    assert sizes.tolist() == [4] * (2 * steps)
    rows = run.sql("SELECT * FROM tokens ORDER BY step, response_id, position")
    per_step = len(copies[0].states) // steps
    apart, moved = [], []
    for (step, _), row in rows.groupby(["step", "response_id"]):
        policy_mask, ids = row["action_index"].notna(), row["token_id"].tolist()
        for column, at in (("logp_old", step), ("logp_post", step + 1)):
            expected = logps(trainer, copies[0].states[at * per_step], ids)
            apart.append(
                np.abs(row[column][policy_mask] - np.array(expected, float)[policy_mask]).max()
            )
        moved.append((row["logp_post"] - row["logp_old"])[policy_mask].abs().max())
    assert max(apart) < 1e-4
    assert max(moved) > 0.01, "the policy did not move"
    retained(run, trainer, copies[0].states[::per_step])


def retained(run, trainer, states):
    """Kept responses of the first step have the likelihood that the weights after the second say.
    `states`: at the beginning of each step, and the last."""
    copies = run.sql("SELECT step, age, response_id, sum(logp_old_sum) AS old,"
                   " sum(logp_post_sum) AS post FROM retention GROUP BY ALL")
    assert len(copies) == 2
    assert set(zip(copies["step"], copies["age"], strict=True)) == {(1, 1)}
    tokens = run.sql("SELECT * FROM tokens WHERE step = 0 ORDER BY response_id, position")
    for row in copies.itertuples():
        mine = tokens[tokens["response_id"] == row.response_id]
        policy_mask = mine["action_index"].notna().to_numpy()
        for value, state in ((row.old, states[0]), (row.post, states[2])):
            expected = np.array(logps(trainer, state, mine["token_id"].tolist()), float)[
                policy_mask
            ]
            assert value == pytest.approx(expected.sum(), abs=2e-4)


def test_an_alarm_stops_the_training(tmp_path, monkeypatch):
    class Script:
        """A monitor that says at its first look that a rule fires."""

        def __init__(self, path, every): ...

        def poll(self):
            return "decay", [{"rule": "lld-decay", "state": "firing", "severity": "critical"}]

        def close(self): ...

    monkeypatch.setattr(alarms_module, "Monitor", Script)
    trainer = swift_tiny.train(
        tmp_path, lambda t: instrument(t, tmp_path / "run", on_alarm="stop"), max_steps=8
    )
    assert trainer.state.global_step == 2
    info = lldscope.open_run(tmp_path / "run").info
    assert (info["status"], info["reason"]) == ("stopped", "lld-decay fired at step 0")


def test_what_cannot_be_recorded_is_refused_at_once(tmp_path):
    messages = []

    def then(trainer):
        trainer._postprocess_batch = lambda batch: None
        with pytest.raises(
            LldscopeError, match=r"no _postprocess_batch\(samples, batch_encoded"
        ) as e:
            instrument(trainer, tmp_path / "run")
        messages.append(e)
        del trainer._postprocess_batch

    swift_tiny.train(tmp_path, then, max_steps=2)
    assert messages
    assert not (tmp_path / "run").exists()
