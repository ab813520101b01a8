#!/usr/bin/env bash
# TRL 1.16.0: the logged `kl` is not the mean k3 estimate of KL to the reference but of k3 times π/π_old, because
# use_bias_correction_kl is on unless it is turned off. In the first update of a rollout batch π is π_old and both agree; in
# the second they part, for the same rollouts and weights and a coefficient that changes nothing. Runs with one and with
# several updates per rollout batch, and runs of earlier releases, are not comparable by this curve.
# Seen: 0.0 and 0.0 in update 1; 0.00737 with the correction and 0.00710 without it in update 2.
# Expected: the KL that is logged does not depend on how its gradient is corrected.
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

def reward(completion_ids, **_):
    return [float(sum(ids) % 3) for ids in completion_ids]

def kl(corrected):
    log = train(reward, beta=1e-12, num_iterations=2, max_steps=2, learning_rate=3e-2,
                gradient_accumulation_steps=1, use_bias_correction_kl=corrected)
    return [entry["kl"] for entry in log if "kl" in entry]

corrected, plain = kl(True), kl(False)
print(trl.__version__, corrected, plain)
assert abs(corrected[0] - plain[0]) < 1e-6
assert abs(corrected[1] - plain[1]) > 1e-5
PY
