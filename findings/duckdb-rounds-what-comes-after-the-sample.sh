#!/usr/bin/env bash
# DuckDB 2.0.1: the first 20,480 rows decide the types of a JSON or CSV log. A reward that is 0 or 1 in them is a whole number
# for ever: 0.4 in a later row becomes 0 and 0.6 becomes 1, without an error or a warning. So a run whose rewards get parts of
# a point late, by a new component or a resumed job, loses them. A new key in a later JSON line is refused, a word instead of
# a number as well.
# Seen: rewards of 0.4 and 0.6 in the last 5,000 of 30,000 rows are 0 and 1 by read_json and read_csv; with sample_size=-1 they
# are 0.4 and 0.6.
# Expected: 0.4 and 0.6, or an error that names the row, as for the other values that do not fit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1
cd "$folder"
env/bin/python - <<'PY'
import json

import duckdb

rewards = [(0.4 if step % 2 else 0.6) if step >= 25_000 else step % 2 for step in range(30_000)]
with open("log.jsonl", "w") as lines, open("log.csv", "w") as table:
    table.write("step,reward\n")
    for step, reward in enumerate(rewards):
        lines.write(json.dumps({"step": step, "reward": reward}) + "\n")
        table.write(f"{step},{reward}\n")

def late(read):
    rows = duckdb.sql(f"SELECT DISTINCT reward FROM {read} WHERE step >= 25000 ORDER BY reward")
    return [reward for (reward,) in rows.fetchall()]

rest = "sample_size=-1"
seen = {
    "read_json": late("read_json('log.jsonl')"), "of all": late(f"read_json('log.jsonl', {rest})"),
    "read_csv": late("read_csv('log.csv')"), "of all rows": late(f"read_csv('log.csv', {rest})"),
}
print(duckdb.__version__, seen)
assert list(seen.values()) == [[0, 1], [0.4, 0.6], [0, 1], [0.4, 0.6]]
PY
