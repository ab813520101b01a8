#!/usr/bin/env bash
# TensorBoard 2.21.0: `EventAccumulator(folder)`, which scripts use to read a run, keeps 10,000 points of each scalar and
# drops others at random, without a word. Of a run of 12,000 steps single spikes are missing, and the gaps differ in length;
# size_guidance={"scalars": 0} keeps all.
# Seen: 10,000 of 12,000 points, with gaps of several steps; 12,000 with the option.
# Expected: all points of a file that the reader has read anyway.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check tensorboard==2.21.0 'setuptools<81'
cd "$folder"
env/bin/python - <<'PY'
from importlib.metadata import version

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer = EventFileWriter("run")
for step in range(12_000):
    value = Summary.Value(tag="reward", simple_value=float(step))
    writer.add_event(Event(wall_time=step, step=step, summary=Summary(value=[value])))
writer.close()

def steps(**options):
    events = EventAccumulator("run", **options)
    events.Reload()
    return [event.step for event in events.Scalars("reward")]

some, every = steps(), steps(size_guidance={"scalars": 0})
gap = max(b - a for a, b in zip(some, some[1:]))
print(version("tensorboard"), len(some), len(every), "largest gap", gap)
assert len(some) == 10_000 and len(every) == 12_000 and gap > 1
PY
