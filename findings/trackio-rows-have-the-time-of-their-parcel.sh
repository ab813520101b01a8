#!/usr/bin/env bash
# Trackio 0.43.0: the time of a row is not when it was logged. Rows are sent in parcels, every half second or so, and all of
# a parcel have one time. Steps per second from the differences of these times are infinite between most rows; `log` takes no
# time of its own.
# Seen: six rows logged 0.15 s apart have two different times.
# Expected: six, 0.15 s apart.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check trackio==0.43.0
cd "$folder"
env/bin/python - <<'PY'
import os
import sqlite3
import time
from importlib.metadata import version

os.environ["TRACKIO_DIR"] = "store"
import trackio

trackio.init(project="p", name="r", embed=False)
for i in range(6):
    trackio.log({"reward": float(i)})
    time.sleep(0.15)
trackio.finish()
rows = sqlite3.connect("store/p.db").execute("SELECT timestamp FROM metrics ORDER BY id").fetchall()
print(version("trackio"), [row[0][17:23] for row in rows])
assert len(rows) == 6 and len(set(rows)) < 6
PY
