#!/usr/bin/env bash
# torch 2.13.0: under autocast to bfloat16 on the CPU `log_softmax` of bfloat16 logits stays bfloat16, while `cross_entropy` of
# the same logits is float32. So two usual ways to write a token's log-probability differ by up to 2⁻⁸ of it there: for an unlikely
# token that is hundredths of a nat. The documentation lists both functions as float32 for CUDA (not run on one).
# Expected: float32 from both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
cd "$folder"
env/bin/python - <<'PY'
import torch
from torch.nn import functional

torch.manual_seed(0)
logits, tokens = 4 * torch.randn(256, 1000), torch.randint(1000, (256,))
logits = logits.bfloat16()
with torch.autocast("cpu", torch.bfloat16):
    soft = functional.log_softmax(logits, -1).gather(1, tokens[:, None])[:, 0]
    cross = -functional.cross_entropy(logits, tokens, reduction="none")
exact = functional.log_softmax(logits.double(), -1).gather(1, tokens[:, None])[:, 0]
errors = [float((value.double() - exact).abs().max()) for value in (soft, cross)]
print(torch.__version__, soft.dtype, cross.dtype, "largest errors in nats:", errors)
assert (soft.dtype, cross.dtype) == (torch.bfloat16, torch.float32)
assert errors[0] > 0.01 and errors[1] < 1e-4
PY
