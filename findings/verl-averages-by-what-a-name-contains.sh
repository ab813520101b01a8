#!/usr/bin/env bash
# verl 0.9.1: `reduce_metrics` takes the minimum of a metric whose name contains "min" and the maximum where it contains
# "max", anywhere in it. A reward component `discriminator`, a share `terminated` and a time in `minutes` are logged as their
# smallest value.
# Seen: of 0.9, 0.1, 0.5 `rollout/terminated_share` is 0.1 and `rollout/ended_share` 0.5.
# Expected: the mean of both; min and max where they are a word of their own.
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

from verl.utils.metric import reduce_metrics

values = [0.9, 0.1, 0.5]
seen = reduce_metrics({"rollout/terminated_share": list(values), "rollout/ended_share": list(values)})
print(version("verl"), {name: float(value) for name, value in seen.items()})
assert seen["rollout/terminated_share"] == 0.1
assert abs(seen["rollout/ended_share"] - 0.5) < 1e-12
PY
