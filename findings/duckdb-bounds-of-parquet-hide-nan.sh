#!/usr/bin/env bash
# DuckDB 2.0.1 and pyarrow 26.0.1: the bounds that pyarrow writes into a Parquet file leave NaN out, as the format asks, and
# both take them for bounds of all values when they read it. A step whose gradient norm is NaN is not found by `isnan`, is
# under any limit above the largest number, and what finds it is another row: the same table without bounds, or with one
# larger number among the same rows, gives the other answers.
# Seen, one NaN among numbers from 0 to 1, with bounds and without: `isnan(g)` 0 and 1 rows, `g <= 1` 1,000 and 999, `g > 1`
# 0 and 1, max(g) 1.0 and NaN; pyarrow's filter ~(g <= 1) 0 and 1.
# Expected: the same rows whatever the file says about its bounds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1 pyarrow==26.0.1 numpy
cd "$folder"
env/bin/python - <<'PY'
import duckdb
import numpy as np
import pyarrow as pa
from pyarrow import dataset, parquet

norm = np.linspace(0.0, 1.0, 1000)
norm[10] = np.nan
for bounded in (True, False):
    parquet.write_table(pa.table({"g": norm}), f"{bounded}.parquet", write_statistics=bounded)

def answers(bounded):
    rows = [
        duckdb.sql(f"SELECT count(*) FROM '{bounded}.parquet' WHERE {where}").fetchall()[0][0]
        for where in ("isnan(g)", "g <= 1", "g > 1")
    ]
    most = duckdb.sql(f"SELECT max(g) FROM '{bounded}.parquet'").fetchall()[0][0]
    over = ~(dataset.field("g") <= 1)
    return [*rows, str(most), dataset.dataset(f"{bounded}.parquet").to_table(filter=over).num_rows]

seen = answers(True), answers(False)
print(duckdb.__version__, pa.__version__, *seen)
assert seen == ([0, 1000, 0, "1.0", 0], [1, 999, 1, "nan", 1])
PY
