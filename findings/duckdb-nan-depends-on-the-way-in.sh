#!/usr/bin/env bash
# DuckDB 2.0.0 with pandas 3.1.1 and pyarrow 26.0.1: the same rows with a NaN give different answers by the way they come in.
# Over a DataFrame NaN is NULL; over an Arrow table it is a number, and the largest. "The best step" is 2 by the one way, and
# by the other the step that diverged.
# Seen: DataFrame (count, avg, max, arg_max) = (3, 2.0, 3.0, 2); Arrow table (4, nan, nan, 1).
# Expected: the same of both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.0 pandas==3.1.1 pyarrow==26.0.1
cd "$folder"
env/bin/python - <<'PY'
import math

import duckdb
import pandas as pd
import pyarrow as pa

rows = {"step": [0, 1, 2, 3], "reward": [1.0, math.nan, 3.0, 2.0]}
frame, arrow = pd.DataFrame(rows), pa.table(rows)

def answer(source):
    return duckdb.execute(
        f"SELECT count(reward), avg(reward), max(reward), arg_max(step, reward) FROM {source}"
    ).fetchall()[0]

by_frame, by_arrow = answer("frame"), answer("arrow")
print(duckdb.__version__, pd.__version__, pa.__version__, by_frame, by_arrow)
assert by_frame == (3, 2.0, 3.0, 2)
assert by_arrow[0] == 4 and math.isnan(by_arrow[1]) and math.isnan(by_arrow[2]) and by_arrow[3] == 1
PY
