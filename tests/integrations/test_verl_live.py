"""verl itself, live on the CPU (`verl_live`): what is recorded is what saved weights say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import verl_live
from transformers import AutoModelForCausalLM

import lldscope
from lldscope.monitor.health import check

pytestmark = pytest.mark.slow
LLDS = (
    "actor_rollout_ref.actor.policy_loss._target_=lldscope.integrations.verl.LLDSPolicyLossConfig",
    "actor_rollout_ref.actor.policy_loss.loss_mode=llds",
    "+actor_rollout_ref.actor.policy_loss.llds_dead_band=1e-4",
)
SAVED = ("trainer.save_freq=1", "actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model]")


def weights(folder, step):
    """The policy after verl's step, which counts from 1; 0 is the start."""
    path = folder / f"checkpoints/global_step_{step}/actor/huggingface"
    model = AutoModelForCausalLM.from_pretrained(path if step else folder / "model")
    return model.eval()


def logps(model, ids):
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    return [None] + [table[k, token].item() for k, token in enumerate(ids[1:])]


def test_llds_and_delta_against_saved_weights(tmp_path):
    """One worker in single precision, LLDS on, two updates per step, checkpoints of each."""
    verl_live.prepare(tmp_path)
    verl_live.train(tmp_path, *verl_live.PRECISE, *LLDS, *SAVED)
    run = lldscope.open_run(tmp_path / "run")
    assert run.info["status"] == "finished"
    assert run.info["trainer"].startswith("verl 0.9")
    state = check(run)
    assert (state.last_step, state.missing, state.dropped) == (1, {}, {})
    assert run.signals()["n_responses"].tolist() == [16, 16]
    assert run.sql("SELECT count(*) AS n FROM updates")["n"].tolist() == [4]
    assert run.signals()[["loss_llds", "grad_norm", "entropy"]].notna().all(axis=None)
    assert run.signals()["loss_llds"].max() > 0
    apart, moved = [], []
    for step in (0, 1):
        before, after = weights(tmp_path, step), weights(tmp_path, step + 1)
        rows = run.sql(f"SELECT * FROM tokens WHERE step = {step} ORDER BY response_id, position")
        assert rows["response_id"].nunique() == 4
        for _, row in rows.groupby("response_id"):
            ids = row["token_id"].tolist()
            own = row["action_index"].notna()
            for column, model in (("logp_old", before), ("logp_post", after)):
                expected = np.array(logps(model, ids), float)[own]
                apart.append(np.abs(row[column][own] - expected).max())
            moved.append((row["logp_post"] - row["logp_old"])[own].abs().max())
    assert max(apart) < 1e-4
    assert max(moved) > 0.01, "the policy did not move"
    engine = run.sql("SELECT logp_behaviour_sum - logp_old_sum AS d FROM actions")["d"]
    assert engine.abs().max() < 1e-3, "the engine has the actor's weights"
