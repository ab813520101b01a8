#!/usr/bin/env bash
# transformers 5.19.0: where the loss is NaN, the Trainer logs the mean of the losses since the last log instead
# (logging_nan_inf_filter, on unless it is turned off), which with logging_steps=1 is 0. One NaN makes all weights NaN; from
# then on every step logs a loss of 0.0, the best there is.
# Seen: losses 1, 2, 0, 0, 0 while the weight is NaN.
# Expected: nan from the third step on.
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

trainer = train([1.0, 2.0, math.nan, 4.0, 8.0], logging_steps=1)
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print(transformers.__version__, losses, trainer.model.weight.item())
assert [round(v, 3) for v in losses] == [1, 2, 0, 0, 0]
assert math.isnan(trainer.model.weight.item())
PY
