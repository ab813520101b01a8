#!/usr/bin/env bash
# transformers 5.19.0: of the numbers of one log line `loss` is the mean over logging_steps, `grad_norm` that of the last
# step alone. A spike of the gradient is seen in one line out of logging_steps, by chance, the loss that caused it in each.
# Seen: with logging_steps=4 and gradients 1, 1, 9, 1 the line says loss 3, grad_norm 1.
# Expected: 3 and 3, or 3 and 9.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check transformers==5.19.0 'accelerate>=1.1' torch==2.13.0
cd "$folder"
env/bin/python - <<'PY'
import math
import tempfile
import warnings

warnings.simplefilter("ignore")
import torch
import transformers
from transformers import PrinterCallback, Trainer, TrainingArguments

class Model(torch.nn.Module):
    """Its loss is its input, and so is its gradient."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return {"loss": (self.weight * x).mean()}

class InOrder(Trainer):
    def _get_train_sampler(self, *arguments):
        return torch.utils.data.SequentialSampler(self.train_dataset)

def train(inputs, logging_steps):
    arguments = TrainingArguments(
        tempfile.mkdtemp(), use_cpu=True, per_device_train_batch_size=1, learning_rate=1e-9,
        logging_steps=logging_steps, num_train_epochs=1, report_to=[], save_strategy="no",
        disable_tqdm=True)
    data = [{"x": torch.tensor([x])} for x in inputs]
    trainer = InOrder(Model(), arguments, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer

line = train([1.0, 1.0, 9.0, 1.0], logging_steps=4).state.log_history[0]
print(transformers.__version__, line)
assert (round(line["loss"], 4), round(line["grad_norm"], 4)) == (3.0, 1.0)
PY
