"""One tool in a process of its own: `python logger_worker.py TOOL TASK FOLDER`, asked by `loggers`.

TASK is `scalars` (20 a step), `actions` (2,048 rows a step, from FOLDER/actions.npz), `million`
(write one million points), `load` (read them) or `follow` (wait until a step can be read). Imports
nothing of the project but lldscope, and that for lldscope only. The last line it prints is JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

Series = dict[str, tuple[np.ndarray, np.ndarray]]

NAMES = [f"train/metric_{i}" for i in range(20)]
ROWS = 2048
STEPS, WARM_UP = 1000, 30
MOST_SECONDS = 60.0  # a task that takes longer ends with the steps it has
TRAINING = 0.02  # seconds of arithmetic between two calls, in place of training
POINTS = 1_000_000


class Lldscope:
    keeps = "every value"

    def __init__(self, folder: Path) -> None:
        import lldscope

        self.path = folder / "run"
        self.recorder = lldscope.Recorder(self.path)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self.recorder.scalars(step=step, name=list(values), value=list(values.values()))
        self.recorder.step(step=step)

    def actions(self, step: int, columns: dict[str, np.ndarray]) -> None:
        self.recorder.actions(step=step, **columns)

    def after_actions(self, step: int) -> None:
        self.recorder.step(step=step)

    def fill(self, steps: Iterator[tuple[int, dict[str, float]]]) -> None:
        """Many steps a call, as importers do it."""
        while batch := list(islice(steps, 500)):
            values = np.array([list(values.values()) for _, values in batch])
            at = np.array([step for step, _ in batch])
            names = NAMES * len(batch)
            self.recorder.scalars(step=at.repeat(len(NAMES)), name=names, value=values.ravel())
            self.recorder.step(step=at)
            self.recorder.flush()

    def close(self) -> None:
        self.recorder.close()
        assert not self.recorder.dropped, self.recorder.dropped

    @staticmethod
    def last(folder: Path) -> Callable[[], int | None]:
        import lldscope

        run = lldscope.open_run(folder / "run")

        def look() -> int | None:
            run.refresh()
            return run.sql("SELECT max(step) m FROM scalars")["m"][0]

        return look

    @staticmethod
    def load(folder: Path) -> Series:
        import lldscope

        with lldscope.open_run(folder / "run") as run:
            rows = run.sql("SELECT name, step, value FROM scalars ORDER BY name, step")
        names = rows["name"].to_numpy()
        ends = [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1), len(rows)]
        steps, values = rows["step"].to_numpy(), rows["value"].to_numpy()
        return {names[a]: (steps[a:b], values[a:b]) for a, b in pairwise(ends)}


class TensorBoard:
    keeps = "a histogram of 30 bins for each column"

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.writer = EventFileWriter(str(folder / "run"))

    def _add(self, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self.writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    def scalars(self, step: int, values: dict[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for tag, value in values.items():  # as SummaryWriter.add_scalar does
            self._add(step, Summary(value=[Summary.Value(tag=tag, simple_value=value)]))

    def actions(self, step: int, columns: dict[str, np.ndarray]) -> None:
        from tensorboard.plugins.histogram.summary_v2 import histogram_pb

        for tag, values in columns.items():
            self._add(step, histogram_pb(tag, values.astype(np.float64)))

    def close(self) -> None:
        self.writer.close()

    @staticmethod
    def load(folder: Path) -> Series:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder / "run"), size_guidance={"scalars": 0}).Reload()
        series = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
        return {t: _columns((e.step, e.value) for e in es) for t, es in series.items()}


class TensorBoardEvent(TensorBoard):
    """The cheapest call that TensorBoard has, which its SummaryWriter does not offer."""

    def scalars(self, step: int, values: dict[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(step, Summary(value=points))


class Wandb:
    keeps = "every value (a wandb.Table)"

    def __init__(self, folder: Path) -> None:
        import wandb

        quiet = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True)
        self.wandb = wandb
        self.run = wandb.init(project="bench", mode="offline", dir=str(folder), settings=quiet)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)

    def actions(self, step: int, columns: dict[str, np.ndarray]) -> None:
        import pandas as pd

        table = self.wandb.Table(dataframe=pd.DataFrame(columns))
        self.run.log({"actions": table}, step=step)

    def close(self) -> None:
        self.run.finish()


class WandbLists(Wandb):
    """The cheapest way to a wandb.Table: without pandas."""

    def actions(self, step: int, columns: dict[str, np.ndarray]) -> None:
        rows = [list(row) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]
        table = self.wandb.Table(columns=list(columns), data=rows, allow_mixed_types=True)
        self.run.log({"actions": table}, step=step)


class Trackio:
    keeps = "every value (a trackio.Table)"

    def __init__(self, folder: Path) -> None:
        os.environ["TRACKIO_DIR"] = str(folder / "trackio")
        import trackio

        self.trackio = trackio
        trackio.init(project="bench", embed=False, auto_log_gpu=False, auto_log_cpu=False)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self.trackio.log(values, step=step)

    def actions(self, step: int, columns: dict[str, np.ndarray]) -> None:
        import pandas as pd

        table = self.trackio.Table(dataframe=pd.DataFrame(columns))
        self.trackio.log({"actions": table}, step=step)

    def close(self) -> None:
        self.trackio.finish()

    @staticmethod
    def load(folder: Path) -> Series:
        import sqlite3

        (path,) = (folder / "trackio").glob("*.db")
        with contextlib.closing(sqlite3.connect(path)) as db:
            records = db.execute("SELECT step, metrics FROM metrics ORDER BY step").fetchall()
        rows = [(step, json.loads(values)) for step, values in records]
        return {n: _columns((s, v[n]) for s, v in rows if n in v) for n in NAMES}


class MLflow:
    keeps = "every value (mlflow.log_table)"
    most_tables = 150  # a tag of the run lists them; mlflow cuts it at 8,000 characters, and stops

    def __init__(self, folder: Path) -> None:
        import mlflow

        self.mlflow = mlflow
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        exp_id = mlflow.create_experiment("bench", artifact_location=str(folder / "artifacts"))
        run = mlflow.start_run(experiment_id=exp_id)
        (folder / "run_id").write_text(run.info.run_id)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self.mlflow.log_metrics(values, step=step)

    def actions(self, step: int, columns: dict[str, np.ndarray]) -> None:
        import pandas as pd

        self.mlflow.log_table(pd.DataFrame(columns), f"actions/{step:06}.json")

    def fill(self, steps: Iterator[tuple[int, dict[str, float]]]) -> None:
        """Far faster than a call a step, which would take more than an hour."""
        from mlflow.entities import Metric

        client, run = self.mlflow.MlflowClient(), self.mlflow.active_run().info.run_id
        while batch := list(islice(steps, 50)):
            client.log_batch(
                run, [Metric(n, v, 0, step) for step, vs in batch for n, v in vs.items()]
            )

    def close(self) -> None:
        self.mlflow.end_run()

    @staticmethod
    def load(folder: Path) -> Series:
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
        run = (folder / "run_id").read_text()
        history = {n: client.get_metric_history(run, n) for n in NAMES}
        return {n: _columns((m.step, m.value) for m in metrics) for n, metrics in history.items()}


class Aim:
    keeps = "a histogram of 64 bins for each column"

    def __init__(self, folder: Path) -> None:
        import aim

        self.aim = aim
        self.run = aim.Run(repo=str(folder), system_tracking_interval=None, log_system_params=False)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.run.track(value, name=name, step=step)

    def actions(self, step: int, columns: dict[str, np.ndarray]) -> None:
        for name, values in columns.items():
            self.run.track(self.aim.Distribution(values[np.isfinite(values)]), name=name, step=step)

    def close(self) -> None:
        self.run.close()

    @staticmethod
    def load(folder: Path) -> Series:
        import aim

        series = {}
        for traces in aim.Repo(str(folder)).query_metrics().iter_runs():
            for metric in traces:
                steps, values = metric.values.sparse_numpy()
                series[metric.name] = (steps, values)
        return series


# A package's name, and after a hyphen which of its calls.
TOOLS: dict[str, Any] = {
    "lldscope": Lldscope,
    "tensorboard": TensorBoard,
    "tensorboard-event": TensorBoardEvent,
    "trackio": Trackio,
    "wandb": Wandb,
    "wandb-lists": WandbLists,
    "mlflow": MLflow,
    "aim": Aim,
}


def _columns(pairs: Iterator[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    steps, values = zip(*pairs, strict=True)
    return np.array(steps), np.array(values)


def train(seconds: float) -> None:
    """Arithmetic that takes the place of training: without the interpreter, and the caches gone."""
    a = np.ones((700, 700), np.float32)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        np.matmul(a, a)


def measure(tool: Any, steps: Iterator[tuple[int, Any]], call: str) -> dict[str, Any]:
    """Time in the training thread of a call a step: by the clock, and of its processor."""
    clock, processor = [], []
    until = time.monotonic() + MOST_SECONDS
    for step, values in steps:
        train(TRAINING)
        used, start = time.thread_time(), time.perf_counter()
        getattr(tool, call)(step, values)
        clock.append(time.perf_counter() - start)
        processor.append(time.thread_time() - used)
        if hasattr(tool, "after_actions") and call == "actions":
            tool.after_actions(step)
        if time.monotonic() > until and step > WARM_UP + 10:
            break
    result: dict[str, Any] = {"steps": len(clock)}
    for name, times in (("clock", clock), ("processor", processor)):
        ms = 1e3 * np.array(times[WARM_UP:])
        result[name] = [*np.percentile(ms, [50, 99]).tolist(), ms.max(), ms.mean()]
    return result


def scalar_steps(n: int) -> Iterator[tuple[int, dict[str, float]]]:
    rng = np.random.default_rng(0)
    for step in range(n):
        yield step, dict(zip(NAMES, rng.normal(size=len(NAMES)).tolist(), strict=True))


def action_steps(n: int, folder: Path) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Rows of a real run over and over, its measurements scaled a little so that none repeats."""
    rng = np.random.default_rng(0)
    with np.load(folder / "actions.npz") as file:
        columns = dict(file)
    total = len(columns["response_id"])
    for step in range(n):
        at = np.arange(step * ROWS, (step + 1) * ROWS) % total
        rows = {name: values[at] for name, values in columns.items()}
        yield (
            step,
            {
                name: values * rng.normal(1, 0.01) if values.dtype.kind == "f" else values
                for name, values in rows.items()
            },
        )


def follow(name: str, folder: Path, step: int) -> None:
    """Ask until the step is there; say when."""
    (folder / "ready").touch()
    look = None
    while True:
        try:
            look = look or _last(name, folder)
            if (look() or -1) >= step:
                break
        except Exception:  # it may not be there yet, or be locked
            time.sleep(0.02)
        time.sleep(0.02)
    (folder / "seen").write_text(str(time.time()))


def _last(name: str, folder: Path) -> Callable[[], int | None]:
    tool = TOOLS[name]
    if hasattr(tool, "last"):
        return tool.last(folder)
    return lambda: max(int(tool.load(folder)[NAMES[-1]][0].max()), 0)


def readable(name: str, folder: Path) -> float | None:
    """Seconds from the end of a call until another process can read what it was given."""
    if not hasattr(TOOLS[name], "load"):
        return None
    tool, marked = TOOLS[name](folder), 20
    reader = subprocess.Popen([sys.executable, __file__, name, "follow", str(folder), str(marked)])
    while not (folder / "ready").exists():
        time.sleep(0.05)
    time.sleep(3)  # what it imports when it first looks
    at = None
    for step, values in scalar_steps(4000):
        tool.scalars(step, values)
        at = time.time() if step == marked else at
        if (folder / "seen").exists():
            break
        time.sleep(0.05)
    exists = (folder / "seen").exists()
    reader.kill()
    reader.wait()
    tool.close()
    return max(0.0, float((folder / "seen").read_text()) - at) if exists and at else None


def write_million(name: str, folder: Path) -> dict[str, Any]:
    tool, start = TOOLS[name](folder), time.perf_counter()
    steps = scalar_steps(POINTS // len(NAMES))
    if hasattr(tool, "fill"):
        tool.fill(steps)
    for step, values in steps:
        tool.scalars(step, values)
    tool.close()
    return {"seconds": time.perf_counter() - start}


def peak_mib() -> float:
    """The most memory that this process and those it has started have held so far; Linux only."""
    total, open_ = 0.0, [os.getpid()]
    while open_:
        process = Path(f"/proc/{open_.pop()}")
        with contextlib.suppress(OSError):
            status = (process / "status").read_text()
            total += int(status.partition("VmHWM:")[2].split()[0]) / 1024
            for task in (process / "task").iterdir():
                open_ += map(int, (task / "children").read_text().split())
    return total


def size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and f.suffix != ".npz")


def main(name: str, task: str, folder: Path, *more: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if task in ("scalars", "actions"):
        tool = TOOLS[name](folder)
        began = peak_mib()
        n = STEPS + WARM_UP
        if task == "actions":
            n = min(n, getattr(tool, "most_tables", n))
        steps = scalar_steps(n) if task == "scalars" else action_steps(n, folder)
        result = measure(tool, steps, task)
        peaks = {"peak_mib": peak_mib(), "began_mib": began}
        tool.close()
        result |= {"bytes": size(folder), "keeps": TOOLS[name].keeps, **peaks}
    elif task == "readable":
        result = {"seconds": readable(name, folder)}
    elif task == "follow":
        follow(name, folder, int(more[0]))
    elif task == "million":
        result = write_million(name, folder)
    elif task == "load":
        used, start = time.process_time(), time.perf_counter()
        series = TOOLS[name].load(folder)
        result = {"seconds": time.perf_counter() - start, "processor": time.process_time() - used}
        assert sum(len(values) for _, values in series.values()) == POINTS
        np.savez(folder / "series.npz", **{n.replace("/", "_"): v for n, v in series.items()})
    return result


if __name__ == "__main__":
    print("\n" + json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])))
    sys.stdout.flush()
    os._exit(0)  # nothing of a tool's own end belongs to the measurement
