"""AReaL's own actor on the CPU: FSDP2 over gloo, its advantages, its loss, its updates. The
rollouts are made up, because AReaL samples by SGLang or vLLM servers only."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest
import tiny_files
import torch
from areal.api import FinetuneSpec
from areal.api.cli_args import MicroBatchSpec, OptimizerConfig, PPOActorConfig
from areal.engine.fsdp_engine import FSDPPPOActor
from transformers import AutoModelForCausalLM

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.integrations.areal import instrument
from lldscope.monitor.health import check

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("areal")
    tiny_files.save(folder / "model")
    os.environ.update(
        RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0"
    )
    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, True)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield folder
    torch.distributed.destroy_process_group()


def make(folder, **changes):
    """One sequence in a micro-batch: without flash attention, which needs a GPU, the sequences of
    one see each other."""
    config = PPOActorConfig(
        mb_spec=MicroBatchSpec(max_tokens_per_mb=10),
        experiment_name="tiny", trial_name="one", path=str(folder / "model"), backend="fsdp:d1",
        dtype="float32", attn_impl="sdpa", gradient_checkpointing=False, ppo_n_minibatches=2,
        optimizer=OptimizerConfig(lr=0.01, warmup_steps_proportion=0.0), **changes,
    )
    actor = FSDPPPOActor(config)
    actor.create_process_group()
    actor.initialize(None, FinetuneSpec(1, dataset_size=32, train_batch_size=8))
    return actor


def rollouts(step):
    """Two groups of four, whose completions end at different places."""
    random = torch.Generator().manual_seed(step)
    groups = []
    for _ in range(2):
        ids = torch.randint(2, 18, (4, 10), generator=random)
        attention = torch.ones(4, 10, dtype=torch.long)
        for i in range(4):
            attention[i, 10 - i :] = 0
        policy_mask = attention.clone()
        policy_mask[:, :3] = 0
        groups.append({
            "input_ids": ids * attention, "attention_mask": attention, "loss_mask": policy_mask,
            "logprobs": -1.0 * policy_mask, "rewards": torch.tensor([1.0, 0.0, 1.0, 0.0]),
            "versions": torch.zeros(4, 10, dtype=torch.int),
        })
    return groups


def weights(actor):
    return {k: v.full_tensor().clone() for k, v in actor.model.state_dict().items()}


def trained(folder, recompute, run=None):
    """Two steps as AReaL's trainer makes them; the weights before, between and after."""
    actor = make(folder, recompute_logprob=recompute, use_decoupled_loss=False)
    recorder = None if run is None else instrument(actor, run, tokens_every=1)
    states = [weights(actor)]
    for step in range(2):
        batch = rollouts(step)
        if recompute:
            for group, logps in zip(batch, actor.compute_logp(batch), strict=True):
                group["prox_logp"] = logps
        actor.ppo_update(actor.compute_advantages(batch))
        states.append(weights(actor))
    if recorder is not None:
        recorder.close()
        assert not recorder.dropped
    return states


@pytest.mark.parametrize("recompute", [True, False], ids=["its own π_old", "the engine's π_old"])
def test_rows_are_what_the_weights_say(folder, tmp_path, recompute):
    alone = trained(folder, recompute)
    states = trained(folder, recompute, tmp_path / "run")
    assert all(torch.equal(a[k], b[k]) for a, b in zip(alone, states, strict=True) for k in a)
    run = lldscope.open_run(tmp_path / "run")
    assert run.info["status"] == "finished"
    assert run.info["trainer"].startswith("areal")
    assert list(check(run).missing) == ["importance ratios and clipped tokens"]
    assert run.signals()["n_responses"].tolist() == [8, 8]
    assert run.signals()["success"].tolist() == [0.5, 0.5]
    assert run.signals()[["delta_correct", "grad_norm", "lr"]].notna().all(axis=None)
    assert run.sql("SELECT count(*) AS n FROM updates")["n"].tolist() == [4]
    lengths = run.sql("SELECT n_tokens, logp_behaviour_sum AS b FROM actions WHERE step = 0"
                      " ORDER BY response_id")
    assert lengths["n_tokens"].tolist() == [7, 6, 5, 4] * 2
    assert (lengths["b"] == -lengths["n_tokens"]).all()
    model = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    moved = []
    for (step, _), row in run.sql("SELECT * FROM tokens ORDER BY ALL").groupby(
        ["step", "response_id"]
    ):
        policy_mask, ids = row["action_index"].notna(), row["token_id"].tolist()
        for column, state in (("logp_old", states[step]), ("logp_post", states[step + 1])):
            fresh = copy.deepcopy(model)
            fresh.load_state_dict(state)
            with torch.no_grad():
                table = torch.log_softmax(fresh(torch.tensor([ids])).logits[0].double(), -1)
            expected = [table[k, token].item() for k, token in enumerate(ids[1:])]
            assert np.allclose(
                row[column][policy_mask], np.array([np.nan, *expected])[policy_mask], atol=1e-4
            )
        moved.append((row["logp_post"] - row["logp_old"])[policy_mask].abs().max())
    assert max(moved) > 0.005, "the policy did not move"
    copies = run.sql("SELECT response_id, sum(logp_post_sum) AS post FROM retention"
                   " WHERE step = 1 AND age = 1 GROUP BY ALL")
    assert len(copies) == 2
    model.load_state_dict(states[2])
    for row in copies.itertuples():
        group, i = divmod(row.response_id, 4)
        ids = rollouts(0)[group]["input_ids"][i, : 10 - i]
        with torch.no_grad():
            table = torch.log_softmax(model(ids[None]).logits[0].double(), -1)
        expected = sum(table[k - 1, ids[k]].item() for k in range(3, len(ids)))
        assert row.post == pytest.approx(expected, abs=1e-4)


def test_one_of_several_processes_keeps_no_responses_and_check_says_so(
    folder, tmp_path, monkeypatch
):
    actor = make(folder, recompute_logprob=False, use_decoupled_loss=False)
    with monkeypatch.context() as several:
        several.setattr(torch.distributed, "get_world_size", lambda: 2)
        recorder = instrument(actor, tmp_path / "run")
    with recorder:
        for step in range(2):
            actor.ppo_update(actor.compute_advantages(rollouts(step)))
    run = lldscope.open_run(tmp_path / "run")
    assert run.signals()["n_responses"].tolist() == [8, 8]
    assert run.sql("SELECT count(*) AS n FROM retention")["n"].tolist() == [0]
    assert check(run).missing["retention"].startswith("with several processes")


def test_what_is_no_actor_is_refused(tmp_path):
    with pytest.raises(LldscopeError, match="it has no compute_logp, compute_advantages"):
        instrument(object(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
