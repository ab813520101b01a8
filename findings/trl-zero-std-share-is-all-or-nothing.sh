#!/usr/bin/env bash
# TRL 1.16.0: `frac_reward_zero_std` is the share of groups without a signal only where rewards are scaled by group. With
# scale_rewards="batch" it compares the standard deviation of the whole rollout batch with 0: half of the groups have equal
# rewards here, and it says 0.
# Seen: 0.5 with scale_rewards="group", 0.0 with "batch", for the same rewards.
# Expected: 0.5 for both: the groups, and what they teach, are the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check trl==1.16.0 transformers==5.19.0 torch==2.13.0 'datasets>=4'
cd "$folder"
env/bin/python - <<'PY'
import tempfile
import warnings

warnings.simplefilter("ignore")
import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM

words = ["<pad>", "<eos>", *"abcdefgh"]
backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")

def train(reward, **settings):
    """The log of a GRPO training of a few hundred weights."""
    torch.manual_seed(0)
    folder = tempfile.mkdtemp()
    Qwen2ForCausalLM(Qwen2Config(
        vocab_size=len(words), hidden_size=8, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=32,
        eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )).save_pretrained(folder)
    arguments = trl.GRPOConfig(
        folder, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], seed=1,
        save_strategy="no", disable_tqdm=True, logging_steps=1, max_completion_length=6,
        per_device_train_batch_size=8, num_generations=4, lr_scheduler_type="constant", **settings)
    trainer = trl.GRPOTrainer(
        folder, args=arguments, processing_class=tokenizer, reward_funcs=reward,
        train_dataset=Dataset.from_list([{"prompt": w} for w in "abcdefgh"]))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer.state.log_history

def reward(prompts, completion_ids, **_):
    """Half of the groups get equal rewards."""
    return [1.0 if prompt == prompts[0] else float(i % 2) for i, prompt in enumerate(prompts)]

def share(scale):
    log = train(reward, max_steps=1, scale_rewards=scale, gradient_accumulation_steps=1)
    return log[0]["frac_reward_zero_std"]

seen = share("group"), share("batch")
print(trl.__version__, seen)
assert seen == (0.5, 0.0)
PY
