"""Ranks of Ray and the recorder of their node, in a real Ray on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from recorded_steps import wait_until

import lldscope
from lldscope.core.errors import RunExists, UsageError
from lldscope.doctor.checks import examine
from lldscope.integrations.ray import RayRecorder
from lldscope.integrations.ray.node import NAMESPACE
from lldscope.monitor.health import check

pytestmark = pytest.mark.slow
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "300"}
ROWS = 64  # of a call
SECONDS = 300  # generous: a machine under load
SLOW = """
import os, time
from pathlib import Path

fsync = os.fsync

def slow(handle):
    while not Path({gate!r}).exists():
        time.sleep(0.05)
    fsync(handle)

os.fsync = slow
"""


@pytest.fixture(scope="module")
def running() -> Iterator[None]:
    ray.init(
        num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000
    )
    yield
    ray.shutdown()


@ray.remote(num_cpus=0)
class Rank:
    """A rank of somebody's training."""

    def __init__(self, place: str, rank: int, world_size: int, **settings: Any) -> None:
        self.recorder = RayRecorder(place, rank=rank, world_size=world_size, **settings)
        self.rank = rank

    def pid(self) -> int:
        return os.getpid()

    def record(self, first: int, last: int, flush: bool = True) -> None:
        for step in range(first, last):
            ids = np.arange(ROWS)
            self.recorder.responses(step=step, response_id=ids, group_id=ids // 8, correct=ids > 9)
            self.recorder.actions(
                step=step, response_id=ids, action_index=0, n_tokens=7,
                logp_old_sum=-(ids + self.rank + 1.0), logp_post_sum=-(ids + self.rank + 2.0),
            )  # fmt: skip
            self.recorder.step(step=step, n_responses=ROWS)
        if flush:
            self.recorder.flush()

    def event(self, **details: Any) -> None:
        self.recorder.event("checkpoint", **details)

    def close(self) -> dict[str, int]:
        self.recorder.close()
        return dict(self.recorder.dropped)


def ranks(place: Any, n: int = 2, **variables: str) -> list[Any]:
    """`variables` are set for them, and for the recorder that they make."""
    made = [
        Rank.options(runtime_env={"env_vars": variables}).remote(str(place), rank, n)
        for rank in range(n)
    ]
    ray.get([rank.pid.remote() for rank in made], timeout=SECONDS)
    return made


def each(made: list[Any], method: str, *arguments: Any) -> list[Any]:
    calls = [getattr(rank, method).remote(*arguments) for rank in made]
    return ray.get(calls, timeout=SECONDS)


def node_process(place: Any) -> int:
    """The process of the recorder of this node."""
    node = ray.get_runtime_context().get_node_id()
    actor = ray.get_actor(f"{node} {place}", namespace=NAMESPACE)
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()), timeout=SECONDS)


def intact(path: Path) -> bool:
    known = ("dropped", "leftover")  # what was lost is said; what a kill cut short
    return {f.what for f in examine(path).findings if f.severity != "note"} <= {*known}


def test_ranks_record_one_run_through_one_actor(running, tmp_path):
    made = ranks(tmp_path / "run", 3)
    each(made, "record", 0, 5)
    ray.get(made[0].event.remote(step=4, path="x"))
    node = node_process(tmp_path / "run")
    assert node not in each(made, "pid"), "the recorder is a process of its own"
    assert each(made, "close") == [{}, {}, {}]
    with lldscope.open_run(tmp_path / "run") as run:
        assert run.damaged == {}
        assert (run.info["status"], run.info["world_size"]) == ("finished", 3)
        assert run.signals()["n_responses"].tolist() == [3 * ROWS] * 5
        assert run.signals()["delta_correct"].tolist() == [-1.0] * 5
        sums = run.sql("SELECT rank, sum(logp_old_sum) s FROM actions GROUP BY rank ORDER BY rank")
        expected = [-5 * sum(i + rank + 1 for i in range(ROWS)) for rank in range(3)]
        assert sums["s"].tolist() == expected
        (event,) = (e for e in run.events() if e["kind"] == "checkpoint")
        assert (event["step"], event["path"], event["rank"]) == (4, "x", 0)
    assert intact(tmp_path / "run")


def test_the_example_of_the_page(running, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "integrations.md"
    (code,) = re.findall(r"```python ray\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    code = code.replace("s3://bucket/runs/mine", str(tmp_path / "run"))
    exec(compile(code, "integrations.md", "exec"), {"rank": 0, "world_size": 1})
    with lldscope.open_run(tmp_path / "run") as run:
        assert run.signals()["n_responses"].tolist() == [8]


def test_the_constructor_raises_what_a_recorder_raises(running, tmp_path):
    with lldscope.Recorder(tmp_path / "run"):
        pass
    with pytest.raises(RunExists, match="already holds a run"):
        RayRecorder(tmp_path / "run")
    with pytest.raises(UsageError, match="name must be a text"):
        RayRecorder(tmp_path / "other", name=["a"])
    with pytest.raises(UsageError, match="rank"):
        RayRecorder(tmp_path / "other", rank=-1)
    with RayRecorder(tmp_path / "run", resume=True) as recorder:
        assert recorder.attempt == 2


def test_a_rank_that_is_killed_loses_nothing_that_was_sent(running, tmp_path):
    made = ranks(tmp_path / "run")
    each(made, "record", 0, 4)
    victim = ray.get(made[1].pid.remote())
    os.kill(victim, signal.SIGKILL)
    ray.get(made[0].record.remote(4, 6))
    with lldscope.open_run(tmp_path / "run") as run:
        assert run.damaged == {}
        assert run.signals()["n_responses"].tolist() == [2 * ROWS] * 4 + [ROWS] * 2

        def told() -> bool:
            run.refresh()
            state = check(run)
            return state.life == "stalled" and f"rank 1 (pid {victim}) is gone" in str(state.reason)

        wait_until(told, SECONDS)
    assert each(made[:1], "close") == [{}]


@pytest.mark.parametrize("store", [False, True], ids=["directory", "object store"])
def test_an_actor_that_is_killed_is_made_anew_and_what_was_lost_is_said(running, tmp_path, store):
    """Every row that was sent is in the run, or counted as lost there."""
    place = f"file://{tmp_path}/run" if store else tmp_path / "run"
    made = ranks(place)
    each(made, "record", 0, 4)
    ray.get(made[0].event.remote(step=3, path="x"))
    each(made, "record", 4, 5)
    for first in (5, 9):
        killed = node_process(place)
        each(made, "record", first, first + 2, False)
        os.kill(killed, signal.SIGKILL)
        each(made, "record", first + 2, first + 4, False)
        wait_until(lambda killed=killed: _other(place, killed), SECONDS)
        each(made, "record", first + 4, first + 4)
    lost = each(made, "close")
    with lldscope.open_run(place) as run:
        assert run.damaged == {}
        assert run.info["status"] == "finished"
        assert run.sql("SELECT count(DISTINCT attempt) n FROM all_steps").n[0] == 1
        assert run.signals()["n_responses"].tolist()[:5] == [2 * ROWS] * 5
        assert [e["step"] for e in run.events() if e["kind"] == "checkpoint"] == [3]
        state = check(run)
        for rank, counted in enumerate(lost):
            for table, rows in (("actions", 13 * ROWS), ("responses", 13 * ROWS), ("steps", 13)):
                (there,) = run.sql(f"SELECT count(*) n FROM all_{table} WHERE rank = {rank}")["n"]
                gone = sum(n for why, n in counted.items() if why.startswith(f"{table}: "))
                assert there + gone == rows, (table, counted)
                assert gone == 0 or table in str(state.dropped)
    if not store:
        assert intact(tmp_path / "run")


def _other(place: Any, killed: int) -> bool:
    try:
        return node_process(place) != killed
    except (ValueError, ray.exceptions.RayActorError):
        return False


def test_calls_wait_neither_for_a_slow_disk_nor_for_the_actor(running, tmp_path):
    """The disk of the node's recorder answers only when the gate is there."""
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch/sitecustomize.py").write_text(SLOW.format(gate=str(tmp_path / "gate")))
    (tmp_path / "gate").touch()
    path = os.pathsep.join([str(tmp_path / "patch"), os.environ.get("PYTHONPATH", "")])
    made = ranks(tmp_path / "run", PYTHONPATH=path)
    each(made, "record", 0, 2)
    (tmp_path / "gate").unlink()
    each(made, "record", 2, 12, False)
    with lldscope.open_run(tmp_path / "run") as run:
        assert len(run.signals()) == 2, "nothing can be sealed, and the calls are over"
    node = node_process(tmp_path / "run")
    os.kill(node, signal.SIGSTOP)
    each(made, "record", 12, 2000, False)  # more calls than can wait
    os.kill(node, signal.SIGCONT)
    (tmp_path / "gate").touch()
    lost = each(made, "close")
    with lldscope.open_run(tmp_path / "run") as run:
        assert run.damaged == {}
        assert run.info["status"] == "finished"
        assert run.signals()["n_responses"].tolist()[:12] == [2 * ROWS] * 12
        dropped = check(run).dropped
        for table, rows in (("actions", ROWS), ("steps", 1)):
            (there,) = run.sql(f"SELECT count(*) n FROM {table}")["n"]
            calls = [c.get(f"{table}: call while the writer was behind", 0) for c in lost]
            assert min(calls) > 0
            assert there + rows * sum(calls) == rows * 4000
            assert dropped[f"{table}: call while the writer was behind"] == sum(calls)
        assert [e for e in run.events() if e["kind"] == "dropped"]
    assert intact(tmp_path / "run")


ENDED = """
import ray, sys
from lldscope.integrations.ray import RayRecorder

ray.init(num_cpus=1, include_dashboard=False, object_store_memory=200_000_000)
recorder = RayRecorder(sys.argv[1])
recorder.step(step=0, n_responses=1)
recorder.flush()
ray.shutdown()
recorder.step(step=1, n_responses=1)
recorder.close()
print(ray.is_initialized(), dict(recorder.dropped))
"""


def test_after_the_end_of_ray_what_was_sealed_is_there_and_no_other_is_started(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ENDED, tmp_path / "run"],
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "False {'calls after the end of Ray': 1}", done.stderr
    with lldscope.open_run(tmp_path / "run") as run:
        assert run.signals()["step"].tolist() == [0]
