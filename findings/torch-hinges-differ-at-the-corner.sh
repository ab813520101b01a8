#!/usr/bin/env bash
# torch 2.13.0: five ways to write max(x, 0) have three gradients at x = 0: relu 0, maximum and amax 0.5, clamp and max(dim) 1.
# In a hinge on a log-ratio x is exactly 0 for every token of the first update, where current and old policy are the same, so
# the way it is written decides whether that update is penalised, half or in full.
# Seen: relu 0.0, maximum 0.5, amax 0.5, clamp 1.0, max(dim) 1.0.
# Expected: the same subgradient from all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
cd "$folder"
env/bin/python - <<'PY'
import torch

def slope(hinge):
    x = torch.zeros(1, requires_grad=True)
    hinge(x).sum().backward()
    return x.grad.item()

zero = torch.zeros(1)
seen = {
    "relu": slope(torch.relu), "maximum": slope(lambda x: torch.maximum(x, zero)),
    "amax": slope(lambda x: torch.stack([x, zero]).amax(0)),
    "clamp": slope(lambda x: x.clamp(min=0)),
    "max(dim)": slope(lambda x: torch.stack([x, zero]).max(0).values),
}
print(torch.__version__, seen)
assert list(seen.values()) == [0.0, 0.5, 0.5, 1.0, 1.0]
PY
