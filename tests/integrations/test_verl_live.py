"""verl's own main_ppo on the CPU, in a process of its own: what is recorded is what saved weights
say.

Ray, TransferQueue, FSDP2 workers, agent loop and reward loop are verl's. Not verl's: the platform
(`verl_cpu`) and the rollout engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import verl_tiny
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import lldscope
from lldscope.importers.build import Import
from lldscope.importers.source import ImportRequest
from lldscope.lint import examine
from lldscope.monitor.health import check

pytestmark = pytest.mark.slow
HELPERS = Path(__file__).parents[1] / "helpers"
CHAT = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
LOSS = "actor_rollout_ref.actor.policy_loss"


def prepare(folder: Path) -> None:
    """A model, a tokenizer and questions."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(verl_tiny.WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, bos_token_id=None,
        eos_token_id=1, pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer = verl_tiny.tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder / "model")
    rows = [
        {
            "data_source": "letters",
            "prompt": [{"role": "user", "content": f"{a} {b} {a}"}],
            "reward_model": {"style": "rule", "ground_truth": a},
            "extra_info": {"index": i},
        }
        for i, (a, b) in enumerate((a, b) for a in "abcdefgh" for b in "ijkl")
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "questions.parquet")


def train(folder: Path) -> None:
    """FSDP2 over gloo on two workers, in the asynchronous trainer, in single precision, LLDS on,
    two updates per step, checkpoints of each."""
    model, questions = folder / "model", folder / "questions.parquet"
    command = [
        sys.executable, "-m", "verl.trainer.main_ppo",
        "trainer.v1.trainer_mode=lldscope_colocate_async", "algorithm.adv_estimator=grpo",
        f"data.train_files={questions}", f"data.val_files={questions}",
        "data.train_batch_size=4", "data.max_prompt_length=16", "data.max_response_length=8",
        "data.dataloader_num_workers=0", "data.shuffle=false", "data.val_batch_size=4",
        f"actor_rollout_ref.model.path={model}",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.use_remove_padding=false",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.actor.optim.lr=0.03",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.actor.use_torch_compile=false",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
        "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32}",
        "actor_rollout_ref.rollout.name=hf_cpu", "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.rollout.calculate_log_probs=true",
        "actor_rollout_ref.rollout.agent.num_workers=1", "reward.num_workers=1",
        f"reward.custom_reward_function.path={Path(__file__).with_name('verl_reward.py')}",
        "trainer.n_gpus_per_node=2", "trainer.nnodes=1", "trainer.logger=[console,tensorboard]",
        "trainer.total_training_steps=2", "trainer.val_before_train=false",
        "trainer.test_freq=-1", "trainer.save_freq=1", "trainer.experiment_name=live",
        f"trainer.default_local_dir={folder / 'checkpoints'}",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "ray_kwargs.ray_init.num_cpus=16", "+ray_kwargs.ray_init.num_gpus=2",
        "+ray_kwargs.ray_init.include_dashboard=false",
        "+ray_kwargs.ray_init.object_store_memory=200000000",
        f"+trainer.lldscope.path={folder / 'run'}", "+trainer.lldscope.tokens_every=1",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model]",
        f"{LOSS}._target_=lldscope.integrations.verl.LLDSPolicyLossConfig",
        f"{LOSS}.loss_mode=llds", f"+{LOSS}.llds_dead_band=1e-4",
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=1200,
        env=os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HELPERS), *filter(None, sys.path)]),
            "VERL_USE_EXTERNAL_MODULES": "verl_cpu", "VERL_ENGINE_DEVICE": "cuda",
            "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
            "RAY_raylet_start_wait_time_s": "300", "RAY_USAGE_STATS_ENABLED": "0",
        },
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


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
    prepare(tmp_path)
    train(tmp_path)
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
