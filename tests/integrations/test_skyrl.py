"""SkyRL's own training loop on the CPU (`skyrl_tiny`): rows against the weights, and alarms."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import skyrl_tiny
import torch
from skyrl.train.utils.callbacks import TrainingCallback

import lldscope
from lldscope.integrations.common import alarms as alarms_module
from lldscope.integrations.skyrl import LldscopeCallback
from lldscope.monitor.health import check

pytestmark = pytest.mark.filterwarnings("ignore")


class Keep(TrainingCallback):
    """The weights at the start and after each step."""

    def __init__(self) -> None:
        self.states = []

    def on_train_start(self, trainer, callback_input, control):
        self.states = [copy.deepcopy(trainer.dispatch.model.state_dict())]

    def on_step_end(self, trainer, callback_input, control):
        self.states.append(copy.deepcopy(trainer.dispatch.model.state_dict()))


def own_logps(model, state, rows):
    """log π of the recorded tokens that the policy wrote."""
    model.load_state_dict(state)
    ids = rows["token_id"].tolist()
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    logps = np.array([np.nan] + [table[k, token].item() for k, token in enumerate(ids[1:])])
    return logps[rows["action_index"].notna()]


def test_rows_are_what_the_weights_say(tmp_path, monkeypatch):
    monkeypatch.setattr("lldscope.recording.columns.TEXTS_PER_STEP", 16)
    alone = skyrl_tiny.train(tmp_path / "alone").dispatch.model.state_dict()
    keep, recorder = Keep(), LldscopeCallback(tmp_path / "run", tokens_every=1)
    trainer = skyrl_tiny.train(tmp_path / "recorded", keep, recorder)
    assert all(torch.equal(alone[k], v) for k, v in trainer.dispatch.model.state_dict().items())
    run = lldscope.open_run(tmp_path / "run")
    assert run.info["status"] == "finished"
    assert (check(run).missing, check(run).dropped) == ({}, {})
    assert run.signals()["n_responses"].tolist() == [16] * 3
    assert run.signals()[["delta_correct", "reward"]].notna().all(axis=None)
    tokens = run.sql("SELECT * FROM tokens ORDER BY step, response_id, position")
    model, moved, of = trainer.dispatch.model, [], {}
    for (step, response), rows in tokens.groupby(["step", "response_id"]):
        policy_mask = rows["action_index"].notna()
        for column, state in (("logp_old", step), ("logp_post", step + 1)):
            expected = own_logps(model, keep.states[state], rows)
            assert np.allclose(rows[column][policy_mask], expected, atol=1e-5)
        moved.append((rows["logp_post"] - rows["logp_old"])[policy_mask].abs().max())
        of[step, response] = rows
    assert max(moved) > 0.01, "the policy did not move"
    copies = run.sql(
        "SELECT step, age, response_id, sum(logp_old_sum) AS old, sum(logp_previous_sum) AS"
        " previous, sum(logp_post_sum) AS post FROM retention GROUP BY ALL"
    )
    assert sorted(zip(copies["step"], copies["age"], strict=True)) == [
        (1, 1), (1, 1), (2, 1), (2, 1), (2, 2), (2, 2),
    ]
    for r in copies.itertuples():
        rows, first = of[r.step - r.age, r.response_id], r.step - r.age
        expected = [own_logps(model, keep.states[k], rows).sum() for k in (first, r.step + 1)]
        assert [r.old, r.post] == pytest.approx(expected, abs=1e-4)
        if r.age > 1:
            before = own_logps(model, keep.states[r.step], rows).sum()
            assert r.previous == pytest.approx(before, abs=1e-4)


@pytest.mark.parametrize("action", ["stop", "save"])
def test_an_alarm_saves_or_stops(tmp_path, monkeypatch, action):
    class Script:
        """A monitor that says at its second look that a rule fires."""

        def __init__(self, path, every):
            self.looks = 0

        def poll(self):
            self.looks += 1
            return "decay", [{"rule": "lld-decay", "state": "firing"}] * (self.looks == 2)

        def close(self): ...

    monkeypatch.setattr(alarms_module, "Monitor", Script)
    trainer = skyrl_tiny.train(
        tmp_path, LldscopeCallback(tmp_path / "run", on_alarm=action), steps=4
    )
    run = lldscope.open_run(tmp_path / "run")
    assert [path.split("/")[-2] for path in trainer.dispatch.saved] == ["global_step_2"]
    assert run.signals()["step"].tolist() == ([0, 1] if action == "stop" else [0, 1, 2, 3])
    expected = ("stopped", "lld-decay fired at step 1") if action == "stop" else ("finished", None)
    assert (run.info["status"], run.info.get("reason")) == expected
