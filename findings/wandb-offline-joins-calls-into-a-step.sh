#!/usr/bin/env bash
# W&B 0.31.0, offline: after `log(…, step=1)` the row stays open, and a `log` without a step, made for something else, goes
# into the same row. A second value of a key replaces the first without a word, and what comes with a smaller step is
# dropped. Four calls of `log` leave one row here.
# Seen: one row, step 1: a=2, b=3; the value of step 0 is nowhere.
# Expected: b in a row of its own, as after a `log` without a step; two rows for a.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check wandb==0.31.0
cd "$folder"
env/bin/python - <<'PY'
import glob
import os
import struct
from pathlib import Path

os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
import wandb
from wandb.proto.wandb_internal_pb2 import Record

run = wandb.init(project="p", settings=wandb.Settings(x_disable_stats=True, console="off"))
run.log({"a": 1.0}, step=1)
run.log({"a": 2.0}, step=1)
run.log({"b": 3.0})
run.log({"a": 4.0}, step=0)
run.finish()
wandb.teardown()  # ends the process that writes the file

# The file is a log of records: length and kind before each part.
data, position, part, rows = Path(glob.glob("wandb/offline*/*.wandb")[0]).read_bytes(), 7, b"", []
while position + 7 <= len(data):
    _, length, kind = struct.unpack("<IHB", data[position : position + 7])
    part = (part if kind in (3, 4) else b"") + data[position + 7 : position + 7 + length]
    position += 7 + length
    if kind in (1, 4):
        record = Record()
        record.ParseFromString(part)
        if record.HasField("history"):
            items = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
            rows.append({k: float(items[k]) for k in ("_step", "a", "b") if k in items})
print(wandb.__version__, rows)
assert rows == [{"_step": 1, "a": 2, "b": 3}]
PY
