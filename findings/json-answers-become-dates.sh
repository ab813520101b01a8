#!/usr/bin/env bash
# duckdb 2.0.1, pyarrow 26.0.1, datasets 5.2.0: JSON has no dates, yet all three read a column of strings that look like dates as
# one: DuckDB as DATE, pyarrow and `datasets` as a timestamp, which as text is "1969-07-20 00:00:00", so the exact match of
# an answer "1969-07-20" is lost. With one answer among them that is no date all are strings: what an answer is depends on the
# other questions of its file.
# pandas 3.1.1 keeps the strings.
# Expected: strings.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1 pyarrow==26.0.1 datasets==5.2.0 pandas==3.1.1
cd "$folder"
export HF_HOME="$folder/cache" HF_HUB_OFFLINE=1
env/bin/python - <<'PY'
import json
from pathlib import Path

import datasets
import duckdb
import pandas as pd
import pyarrow.json as arrow

datasets.disable_progress_bars()
seen = {}
for name, answers in {"dates": ["1969-07-20", "1945-05-08"], "mixed": ["1969-07-20", "Paris"]}.items():
    file = Path(f"{name}.jsonl")
    file.write_text("".join(json.dumps({"answer": a}) + "\n" for a in answers))
    first = duckdb.connect().execute(f"FROM read_json('{file}')").fetchone()[0]
    table = datasets.load_dataset("json", data_files=str(file))["train"]
    seen[name] = (
        type(first).__name__,
        str(arrow.read_json(file).schema.field("answer").type),
        str(table[0]["answer"]),
        type(pd.read_json(file, lines=True)["answer"][0]).__name__,
    )
print(duckdb.__version__, datasets.__version__, seen)
assert seen["dates"] == ("date", "timestamp[s]", "1969-07-20 00:00:00", "str")
assert seen["mixed"] == ("str", "string", "1969-07-20", "str")
PY
