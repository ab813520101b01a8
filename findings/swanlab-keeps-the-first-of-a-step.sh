#!/usr/bin/env bash
# SwanLab 0.10.3, offline: of two values of a key at one step the first stays and the second is dropped without a word. W&B
# keeps the last. A run that was resumed from a checkpoint, or a loop that logs a micro-batch's value and then the step's,
# shows the older number, and scripts that log to both services show two curves.
# Seen: x=1 and then x=2 at step 5: the file has 1 alone; nothing is printed of it.
# Expected: both or the last, or a warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check swanlab==0.10.3
cd "$folder"
export HOME=$folder SWANLAB_SAVE_DIR=$folder/swanlab
env/bin/python - 2>&1 <<'PY' | tee said
import struct
from pathlib import Path

import swanlab
from swanlab.proto.swanlab.record.v1.record_pb2 import Record

swanlab.init(project="p", mode="offline", logdir="log")
for value in (1.0, 2.0):
    swanlab.log({"x": value}, step=5)
swanlab.log({"x": 3.0}, step=6)
swanlab.finish()

# The file is a log of records: length and kind before each part.
data, position, part, rows = next(Path("log").rglob("*.swanlab")).read_bytes(), 7, b"", []
while position + 7 <= len(data):
    _, length, kind = struct.unpack("<IHB", data[position : position + 7])
    part = (part if kind in (3, 4) else b"") + data[position + 7 : position + 7 + length]
    position += 7 + length
    if kind in (1, 4):
        record = Record()
        record.ParseFromString(part)
        if record.HasField("scalar"):
            rows.append((record.scalar.step, record.scalar.value.number))
print(swanlab.__version__, rows)
assert rows == [(5, 1.0), (6, 3.0)]
PY
! grep -iE "warn|drop|ignor|duplicat|already" said
