#!/usr/bin/env bash
# torch 2.13.0: `clip_grad_norm_` does two things with a gradient that is not finite. A single infinite number makes itself NaN
# and all others exactly 0, so one weight is lost and the rest seem to be trained on, moved by momentum alone; a single NaN
# makes all of them NaN. Nothing is raised, and the norm that it returns is what says which.
# Seen, three gradients of ones and one bad number: inf → [NaN, 0], [0, 0], [0, 0]; NaN → all NaN. AdamW then loses one of six
# weights, or all six.
# Expected: the same of both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
cd "$folder"
env/bin/python - <<'PY'
import math

import torch

def after(bad):
    """Gradients after clipping, and how many weights are NaN after a step."""
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = torch.optim.AdamW(weights, lr=0.1)
    for weight in weights:
        weight.grad = torch.ones(2)
    weights[0].grad[0] = bad
    norm = torch.nn.utils.clip_grad_norm_(weights, 1.0)
    gradients = torch.cat([w.grad for w in weights])
    optimizer.step()
    return float(norm), str(gradients.tolist()), sum(int(w.isnan().sum()) for w in weights)

infinite, nan = after(math.inf), after(math.nan)
print(torch.__version__, infinite, nan)
assert infinite == (math.inf, "[nan, 0.0, 0.0, 0.0, 0.0, 0.0]", 1)
assert math.isnan(nan[0]) and nan[1:] == (str([math.nan] * 6), 6)
PY
