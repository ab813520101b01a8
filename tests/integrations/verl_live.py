"""verl's own main_ppo on the CPU, in a process of its own: Ray, TransferQueue, FSDP2 workers over
gloo, agent loop, reward loop. Not verl's: the platform (`verl_cpu`) and the rollout engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import verl_tiny
from transformers import LlamaConfig, LlamaForCausalLM

HELPERS = Path(__file__).parents[1] / "helpers"
CHAT = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


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


def train(folder: Path, *overrides: str, gpus: int = 1) -> str:
    """Run verl in `folder`; returns its console. Raises AssertionError with the end of it."""
    model, questions = folder / "model", folder / "questions.parquet"
    command = [
        sys.executable, "-m", "verl.trainer.main_ppo",
        "trainer.v1.trainer_mode=lldscope_sync", "algorithm.adv_estimator=grpo",
        f"data.train_files={questions}", f"data.val_files={questions}",
        "data.train_batch_size=4", "data.max_prompt_length=16", "data.max_response_length=8",
        "data.dataloader_num_workers=0", "data.shuffle=false", "data.val_batch_size=4",
        f"actor_rollout_ref.model.path={model}",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.use_remove_padding=false",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.actor.optim.lr=0.03",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.actor.use_torch_compile=false",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
        "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
        "actor_rollout_ref.rollout.name=hf_cpu", "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.rollout.calculate_log_probs=true",
        "actor_rollout_ref.rollout.agent.num_workers=1", "reward.num_workers=1",
        f"reward.custom_reward_function.path={Path(__file__).with_name('verl_reward.py')}",
        f"trainer.n_gpus_per_node={gpus}", "trainer.nnodes=1", "trainer.logger=[console]",
        "trainer.total_training_steps=2", "trainer.val_before_train=false",
        "trainer.test_freq=-1", "trainer.save_freq=-1", "trainer.experiment_name=live",
        f"trainer.default_local_dir={folder / 'checkpoints'}",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "ray_kwargs.ray_init.num_cpus=16", f"+ray_kwargs.ray_init.num_gpus={gpus}",
        "+ray_kwargs.ray_init.include_dashboard=false",
        "+ray_kwargs.ray_init.object_store_memory=200000000",
        f"+trainer.lldscope.path={folder / 'run'}", "+trainer.lldscope.tokens_every=1",
        *overrides,
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
    return done.stdout
