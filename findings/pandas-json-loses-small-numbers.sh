#!/usr/bin/env bash
# pandas 3.1.1: `to_json` keeps ten digits after the point, whatever the size of a number. A learning rate of 3e-11 becomes
# 0.0 and 1.23456789e-6 loses half of its digits; no option is set and nothing is said.
# Seen: {"lr":0.0,"kl":0.0000012346}
# Expected: what `json.dumps` writes, or digits that count from the first one that is not 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check pandas==3.1.1
cd "$folder"
env/bin/python - <<'PY'
import json

import pandas as pd

row = {"lr": 3e-11, "kl": 1.23456789e-6}
text = pd.DataFrame([row]).to_json(orient="records", lines=True).strip()
print(pd.__version__, text, "json.dumps:", json.dumps(row))
assert json.loads(text) == {"lr": 0.0, "kl": 1.2346e-6}
PY
