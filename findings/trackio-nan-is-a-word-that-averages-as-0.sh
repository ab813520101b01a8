#!/usr/bin/env bash
# Trackio 0.43.0 with SQLite: a NaN is stored as the text "NaN" in the JSON of its row. Asked in SQL, the average counts it
# as 0, the maximum is the text, and `> 0` is true of it: three wrong answers and no error.
# Seen: of 1, 1, NaN, 1 avg is 0.75, max is 'NaN', 4 values are above 0.
# Expected: NULL, which aggregates leave out, or a failed conversion.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check trackio==0.43.0
cd "$folder"
env/bin/python - <<'PY'
import math
import os
import sqlite3
from importlib.metadata import version

os.environ["TRACKIO_DIR"] = "store"
import trackio

trackio.init(project="p", name="r", embed=False)
for value in (1.0, 1.0, math.nan, 1.0):
    trackio.log({"loss": value})
trackio.finish()
loss = "json_extract(metrics, '$.loss')"
row = sqlite3.connect("store/p.db").execute(
    f"SELECT avg({loss}), max({loss}), sum({loss} > 0) FROM metrics").fetchone()
print(version("trackio"), row)
assert row == (0.75, "NaN", 4)
PY
