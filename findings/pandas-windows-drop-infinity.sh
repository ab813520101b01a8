#!/usr/bin/env bash
# pandas 3.1.1: inside `rolling`, `expanding` and `ewm` an infinite value is a missing one, for `max` too. A gradient norm
# that became infinite leaves no trace in a smoothed curve, while `Series.max()` and `Series.mean()` are infinite.
# Seen: expanding().max() of 1, inf, 2, 4 is [1, 1, 2, 4]; rolling(2).mean() is [nan, nan, nan, 3]; max() is inf.
# Expected: [1, inf, inf, inf] and [nan, inf, inf, 3].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check pandas==3.1.1
cd "$folder"
env/bin/python - <<'PY'
import math

import pandas as pd

norms = pd.Series([1.0, math.inf, 2.0, 4.0])
most, smooth = norms.expanding().max().tolist(), norms.rolling(2).mean().tolist()
print(pd.__version__, most, smooth, norms.ewm(span=2).mean().tolist(), norms.max(), norms.mean())
assert most == [1, 1, 2, 4]
assert [math.isnan(v) for v in smooth] == [True, True, True, False] and smooth[3] == 3
assert norms.max() == norms.mean() == math.inf
PY
