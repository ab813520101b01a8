"""`lldscope runs` of many runs on an S3 server (moto's), from the index beside them.

python -m benchmarks.many_remote_runs [RUNS]
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import fsspec

from lldscope.monitor.run_index import RunIndex
from lldscope.monitor.summary import read_summary
from lldscope.query.remote import find_remote
from lldscope.storage.objects import ObjectStore
from lldscope.storage.url import Url

from .long_run import write_long_run
from .s3_server import s3_server

ROOT = Url("s3://bucket/runs")


def main(runs: int) -> None:
    with tempfile.TemporaryDirectory() as folder, s3_server():
        os.environ["LLDSCOPE_SPOOL"] = folder
        write_long_run("s3://bucket/one", 60, 16, 2)
        fs = fsspec.filesystem("s3", skip_instance_cache=True)
        objects = {p: fs.cat_file(p) for p in fs.find("bucket/one")}
        for k in range(runs):
            name = f"{k:05}"
            copies = {f"{name}{p.removeprefix('bucket/one')}": c for p, c in objects.items()}
            ObjectStore(ROOT).put(copies)
        start = time.perf_counter()
        places = find_remote(ROOT)
        listed = time.perf_counter() - start
        print(f"{runs} runs of {len(objects)} objects each, found in {listed:.1f} s")
        start = time.perf_counter()
        one = read_summary("one", Url("s3://bucket/one"), ROOT)
        print(f"one run opened without an index: {time.perf_counter() - start:.2f} s")
        index = RunIndex(ROOT)
        for place, stamp in places.items():
            index.put(replace(one, name=place.name, title=place.name), stamp)
        index.save([place.name for place in places])
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        command = [sys.executable, "-m", "lldscope", "runs", str(ROOT), "--json"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        seconds = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"lldscope runs --json, from the index: {seconds:.1f} s,")
        print(f"of which the command's own processor time {processor:.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
