#!/usr/bin/env bash
# dvclive 3.49.1: metrics.json is a tree by the slashes of the names. A metric `train` logged after `train/loss` takes the
# place of the whole branch: `train/loss` is gone from metrics.json, with what DVC compares by it, while its plot goes on.
# Seen: {"train": 1.0} and the file plots/metrics/train/loss.tsv.
# Expected: both values, or an error for the second name.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check dvclive==3.49.1
cd "$folder"
env/bin/python - <<'PY'
import json
import logging
from importlib.metadata import version
from pathlib import Path

logging.disable(logging.CRITICAL)
from dvclive import Live

with Live("out", save_dvc_exp=False) as live:
    live.log_metric("train/loss", 0.5)
    live.log_metric("train", 1.0)
metrics = json.loads(Path("out/metrics.json").read_text())
plot = Path("out/plots/metrics/train/loss.tsv").read_text().split()
print(version("dvclive"), metrics, plot)
assert metrics["train"] == 1.0
assert plot == ["step", "loss", "0", "0.5"]
PY
