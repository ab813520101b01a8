"""What a call costs in a rank of Ray, where the recorder of the node writes, and where it hangs.

RAY_USAGE_STATS_ENABLED=0 .envs/verl/bin/python tests/bench/ray_recorder.py
"""

from __future__ import annotations

import os
import signal
import tempfile

import ray
from calls import CALLS, OF_STEP, line, timed

import lldscope
from lldscope.integrations.ray import RayRecorder
from lldscope.integrations.ray.node import NAMESPACE


@ray.remote(num_cpus=0)
def rank(folder: str) -> list[str]:
    with lldscope.Recorder(f"{folder}/bare") as recorder:
        said = [line("a directory", timed(recorder))]
    with RayRecorder(f"{folder}/run") as recorder:
        said.append(line("the node's recorder", timed(recorder)))
        node = ray.get_runtime_context().get_node_id()
        actor = ray.get_actor(f"{node} {folder}/run", namespace=NAMESPACE)
        pid = ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))
        os.kill(pid, signal.SIGSTOP)
        said.append(line("one that hangs", timed(recorder, CALLS)))
        os.kill(pid, signal.SIGCONT)
    return [*said, f"dropped: {dict(recorder.dropped)}"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
        print(*ray.get(rank.remote(folder)), sep="\n")
        ray.shutdown()
        with lldscope.open_run(f"{folder}/run") as run:
            print(f"steps in the run: {len(run.signals())} of {2 * CALLS // OF_STEP}")


if __name__ == "__main__":
    main()
