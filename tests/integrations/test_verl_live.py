"""verl itself, live on the CPU (`verl_live`): what is recorded is what saved weights say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import verl_live
from transformers import AutoModelForCausalLM

import lldscope
from lldscope.importers.build import Import
from lldscope.importers.source import ImportRequest
from lldscope.lint import examine
from lldscope.monitor.health import check

pytestmark = pytest.mark.slow
LLDS = (
    "actor_rollout_ref.actor.policy_loss._target_=lldscope.integrations.verl.LLDSPolicyLossConfig",
    "actor_rollout_ref.actor.policy_loss.loss_mode=llds",
    "+actor_rollout_ref.actor.policy_loss.llds_dead_band=1e-4",
)
SAVED = ("trainer.save_freq=1", "actor_rollout_ref.actor.checkpoint.save_contents=[model]")


def weights(folder, step):
    """The policy after verl's step, which counts from 1; 0 is the start. (verl's checkpoints in
    Hugging Face's form are bfloat16.)"""
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    if step:
        actor = folder / f"checkpoints/global_step_{step}/actor"
        shards = [
            torch.load(actor / f"model_world_size_2_rank_{rank}.pt", weights_only=False)
            for rank in (0, 1)
        ]
        model.load_state_dict(
            {name: torch.cat([s[name].to_local() for s in shards]) for name in shards[0]}
        )
    return model.eval()


def logps(model, ids):
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    return [None] + [table[k, token].item() for k, token in enumerate(ids[1:])]


def test_llds_and_delta_against_saved_weights(tmp_path):
    """FSDP2 over gloo on two workers, in the asynchronous trainer, in single precision, LLDS on,
    two updates per step, checkpoints of each."""
    verl_live.prepare(tmp_path)
    logger = "trainer.logger=[console,tensorboard]"
    verl_live.train(
        tmp_path, *LLDS, *SAVED, logger, "trainer.v1.trainer_mode=lldscope_colocate_async",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32}", gpus=2,
    )
    run = lldscope.open_run(tmp_path / "run")
    assert run.info["status"] == "finished"
    assert run.info["trainer"].startswith("verl 0.9")
    state = check(run)
    assert (state.last_step, state.missing, state.dropped) == (1, {}, {})
    assert examine(run).findings == []
    assert run.signals()["n_responses"].tolist() == [16, 16]
    assert run.sql("SELECT count(*) AS n FROM updates")["n"].tolist() == [4]
    assert run.signals()[["loss_llds", "grad_norm", "entropy", "reward"]].notna().all(axis=None)
    assert run.signals()["loss_llds"].max() > 0
    Import([tmp_path / "tensorboard_log"], tmp_path / "log", ImportRequest(), None).build(id)
    logged = "SELECT step, value FROM scalars WHERE name = 'delta_correct' ORDER BY step"
    expected = run.columns()["delta_correct"].tolist()
    assert [*zip(*lldscope.open_run(tmp_path / "log").rows(logged).rows, strict=True)] == [
        (1, 2), pytest.approx(expected),
    ]
    apart, moved = [], []
    for step in (0, 1):
        before, after = weights(tmp_path, step), weights(tmp_path, step + 1)
        rows = run.sql(f"SELECT * FROM tokens WHERE step = {step} ORDER BY response_id, position")
        assert rows["response_id"].nunique() == 4
        for _, row in rows.groupby("response_id"):
            ids = row["token_id"].tolist()
            policy_mask = row["action_index"].notna()
            for column, model in (("logp_old", before), ("logp_post", after)):
                expected = np.array(logps(model, ids), float)[policy_mask]
                apart.append(np.abs(row[column][policy_mask] - expected).max())
            moved.append((row["logp_post"] - row["logp_old"])[policy_mask].abs().max())
    assert max(apart) < 1e-4
    assert max(moved) > 0.01, "the policy did not move"
    copies = run.sql(
        "SELECT k.response_id, sum(k.logp_old_sum) AS old, sum(k.logp_post_sum) AS post"
        " FROM retention k WHERE k.step = 1 AND k.age = 1 GROUP BY ALL"
    )
    assert 1 <= len(copies) <= 2
    assert copies.notna().all(axis=None)
    sampled = run.sql("SELECT * FROM tokens WHERE step = 0 ORDER BY response_id, position")
    for row in copies.itertuples():
        tokens = sampled[sampled["response_id"] == row.response_id]
        policy_mask = tokens["action_index"].notna().to_numpy()
        if len(tokens):  # texts are those of four responses
            for value, step in ((row.old, 0), (row.post, 2)):
                expected = np.array(logps(weights(tmp_path, step), tokens["token_id"].tolist()))
                assert value == pytest.approx(expected[policy_mask].sum(), abs=1e-3)
    engine = run.sql("SELECT logp_behaviour_sum FROM actions")["logp_behaviour_sum"]
    assert engine.notna().all()
