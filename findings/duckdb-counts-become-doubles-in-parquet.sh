#!/usr/bin/env bash
# DuckDB 2.0.0: the sum of whole numbers is a HUGEINT, and `COPY … TO 'x.parquet'` writes that as DOUBLE, since Parquet has no
# such type. Whoever reads the file has floats for token counts, and above 2^53 other numbers; `count(*)` beside it stays an
# integer.
# Seen: sum(tokens) of 9007199254740993 is read as 9007199254740992.0, column type double.
# Expected: an integer or decimal column, or an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.0 pyarrow==26.0.1
cd "$folder"
env/bin/python - <<'PY'
import duckdb
import pyarrow.parquet as pq

duckdb.execute("CREATE TABLE steps AS SELECT 9007199254740993 AS tokens")
total = duckdb.execute("SELECT sum(tokens) FROM steps").fetchall()[0][0]
duckdb.execute("COPY (SELECT sum(tokens) AS tokens, count(*) AS n FROM steps) TO 'x.parquet'")
written = pq.read_table("x.parquet")
types = {field.name: str(field.type) for field in written.schema}
print(duckdb.__version__, total, types, written["tokens"][0])
assert total == 9007199254740993
assert types == {"tokens": "double", "n": "int64"}
assert written["tokens"][0].as_py() == 9007199254740992
PY
