#!/usr/bin/env bash
# DuckDB 2.0.0 and pyarrow 26.0.1: of several Parquet parts the first decides which columns there are. A metric that is
# logged only from the second part on is silently not there; with the parts in the other order DuckDB refuses to read them.
# Seen: rows (1, 1.0), (2, 2.0) without column kl; in the other order InvalidInputException; pyarrow's dataset has no kl either.
# Expected: a column kl with NULL in the first part, in any order, as for JSON lines.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.0 pyarrow==26.0.1
cd "$folder"
env/bin/python - <<'PY'
import duckdb
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

pq.write_table(pa.table({"step": [1], "reward": [1.0]}), "1.parquet")
pq.write_table(pa.table({"step": [2], "reward": [2.0], "kl": [0.1]}), "2.parquet")
rows = duckdb.execute("SELECT * FROM read_parquet(['1.parquet', '2.parquet'])").fetchall()
dataset = pa.dataset.dataset(["1.parquet", "2.parquet"]).to_table()
try:
    duckdb.execute("SELECT * FROM read_parquet(['2.parquet', '1.parquet'])").fetchall()
    other = "rows"
except duckdb.InvalidInputException as error:
    other = "schema mismatch" if "schema mismatch" in str(error) else str(error)
print(duckdb.__version__, pa.__version__, rows, dataset.column_names, other)
assert rows == [(1, 1.0), (2, 2.0)]
assert dataset.column_names == ["step", "reward"] and dataset.num_rows == 2
assert other == "schema mismatch"
PY
