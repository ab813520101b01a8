#!/usr/bin/env bash
# verl 0.9.1: `response_length/clip_ratio`, by its name the share of responses that the limit cut, is the share that is as
# long as the widest tensor of the batch. The trainer pads a batch to its longest response, so that one always counts: the
# number is never 0, and it is 1 where all responses are of one length, however short.
# Seen: three responses of 1, 2 and 3 tokens, none cut: 0.333; three of 2 tokens: 1.0.
# Expected: 0 for both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 tensordict==0.10.0 transformers==5.10.4 \
    ray==2.60.0 hydra-core==1.3.8 omegaconf==2.3.1 codetiming==1.4.0 dill==0.4.1 accelerate==1.15.0 psutil==7.2.2 \
    TransferQueue==0.1.11 msgspec==0.22.0 pyzmq==27.3.0 cachetools==8.0.1 pillow requests
"$folder/env/bin/pip" install --quiet --disable-pip-version-check --no-deps verl==0.9.1  # its whole tree is for GPUs
cd "$folder"
env/bin/python - <<'PY'
from importlib.metadata import version

import torch
from verl import DataProto
from verl.trainer.ppo.metric_utils import compute_data_metrics

def clip_ratio(lengths):
    """Of a batch that is padded to its longest response, as the trainer does it."""
    width, n = max(lengths), len(lengths)
    mask = torch.tensor([[int(i < length) for i in range(width)] for length in lengths])
    scores = torch.zeros(n, width)
    batch = DataProto.from_dict(tensors={
        "prompts": torch.ones(n, 1).long(), "responses": mask, "response_mask": mask,
        "attention_mask": torch.cat([torch.ones(n, 1).long(), mask], 1),
        "token_level_scores": scores, "token_level_rewards": scores, "advantages": scores,
        "returns": scores,
    })
    return compute_data_metrics(batch, use_critic=False)["response_length/clip_ratio"]

seen = clip_ratio([1, 2, 3]), clip_ratio([2, 2, 2])
print(version("verl"), seen)
assert round(seen[0], 3) == 0.333 and seen[1] == 1.0
PY
