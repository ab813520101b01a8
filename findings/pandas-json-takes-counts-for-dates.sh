#!/usr/bin/env bash
# pandas 3.1.1: `read_json` takes a column for dates because of its name: if it ends in `_at` or `_time`, or begins with
# `modified`, `date` or `timestamp`, and its numbers are above 31,536,000. A count of tokens becomes a day in 1971 as soon as
# all rows of a file are large enough; the same log read some steps earlier has integers.
# Seen: tokens_at is int64 for 30 million, datetime64 for 40 million.
# Expected: integers both times.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check pandas==3.1.1
cd "$folder"
env/bin/python - <<'PY'
from io import StringIO

import pandas as pd

def column(tokens):
    return pd.read_json(StringIO(f'{{"step":1,"tokens_at":{tokens}}}\n'), lines=True)["tokens_at"]

early, late = column(30_000_000), column(40_000_000)
print(pd.__version__, early.dtype, late.dtype, late[0])
assert early.dtype == "int64" and early[0] == 30_000_000
assert late.dtype.kind == "M" and late[0].year == 1971
PY
