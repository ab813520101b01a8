"""The recorder beside other loggers: what each costs training, its disk, and who reads it.

python -m benchmarks.loggers [--rivals PYTHON] [--only TOOL …]

PYTHON is the interpreter of an environment of its own, made from `benchmarks/loggers.txt`; tools
that are in none are left out, and that is said. Every measurement is a process of its own
(`logger_worker.py`), one after the other. Between two calls a matrix is multiplied, as long as
`TRAINING` says, so that caches are as cold as training leaves them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import lldscope
from lldscope.storage import layout

from .logger_worker import NAMES, ROWS, TOOLS, TRAINING

HERE = Path(__file__).parent
SAMPLE = HERE.parent / "sample_runs" / "grpo"
MOST_SECONDS = 240  # for one process; writing a million points takes some tools that long
FLOOD = 500  # calls, one after the other
SIZED = 200  # steps, to see how many bytes a row takes

TASKS = ("scalars", "actions", "readable", "million")  # and, after `million`, `load`

Told = dict[str, dict[str, Any]]  # task → what the worker said


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rivals", default=sys.executable, help="python with the other loggers")
    parser.add_argument("--only", nargs="*", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    options = parser.parse_args(arguments or [])
    results: dict[str, Told] = {}
    for name in options.only:
        python = sys.executable if name == "lldscope" else options.rivals
        if name != "lldscope" and not installed(python, name):
            print(f"{name} is not installed for {python}: left out")
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        results[name] = ask(python, name, options.tasks)
    if len(results) < len(options.only):
        print("To have them all: python -m venv .venv-loggers && .venv-loggers/bin/pip install -r")
        print("benchmarks/loggers.txt, then --rivals .venv-loggers/bin/python")
    show(results)
    if "lldscope" in results:
        flood()
        for noise in (False, True):
            size(noise)


def installed(python: str, name: str) -> bool:
    package = name.partition("-")[0]
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def ask(python: str, name: str, tasks: list[str]) -> Told:
    result: Told = {}
    for task in tasks:
        with tempfile.TemporaryDirectory(prefix="lldscope-loggers-") as folder:
            path = Path(folder)
            if task == "actions":
                np.savez(path / "actions.npz", **sample_actions())
            result[task] = worker(python, name, task, path)
            if task == "million" and "seconds" in result[task] and hasattr(TOOLS[name], "load"):
                result["load"] = worker(python, name, "load", path)
                if "seconds" in result["load"]:
                    result["load"]["draw"] = draw(path / "series.npz")
        print(f"  {task}: {result[task]} {result.get('load', '')}", file=sys.stderr, flush=True)
    return result


def worker(python: str, name: str, task: str, folder: Path) -> dict[str, Any]:
    command = [python, str(HERE / "logger_worker.py"), name, task, str(folder)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            check=True,
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {MOST_SECONDS} s"}
    except subprocess.CalledProcessError as error:
        return {"failed": (error.stderr or "no word").strip().splitlines()[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def sample_actions() -> dict[str, np.ndarray]:
    """The numbers of a sample run's actions."""
    parts = [p for p in layout.read_manifest(SAMPLE).parts if p.table == "actions"]
    rows = pq.read_table([p.path(SAMPLE) for p in parts], partitioning=None)
    columns = {}
    for field in rows.schema:
        column = rows.column(field.name)
        if field.name not in ("step", "attempt", "rank") and not pa.types.is_string(field.type):
            columns[field.name] = column.fill_null(_nothing(field.type)).to_numpy()
    return columns


def _nothing(kind: pa.DataType) -> float | int | bool:
    if pa.types.is_floating(kind):
        return float("nan")
    return False if pa.types.is_boolean(kind) else 0


def draw(series: Path) -> float:
    """Seconds from arrays to the figure the dashboard would send: thinned, as JSON."""
    from plotly import graph_objects as go

    from lldscope.figures.series import thin

    with np.load(series) as file:
        curves = {name: file[name] for name in file}
    start = time.perf_counter()
    figure = go.Figure()
    for name, (steps, values) in curves.items():
        thinned = thin(steps, values)
        figure.add_scattergl(x=thinned.x, y=thinned.y, name=name)
    figure.to_json()
    return time.perf_counter() - start


def flood() -> None:
    """Rows a second into Parquet when calls come as fast as the writer takes them."""
    columns = {name: values[:ROWS] for name, values in sample_actions().items()}
    with tempfile.TemporaryDirectory() as folder:
        recorder = lldscope.Recorder(Path(folder) / "run")
        start, used = time.perf_counter(), time.process_time()
        for step in range(FLOOD):
            columns["logp_old_sum"] = np.random.default_rng(step).normal(size=ROWS)
            recorder.actions(step=step, **columns)
            recorder.step(step=step)
        recorder.close()
        seconds, used = time.perf_counter() - start, time.process_time() - used
        assert not recorder.dropped, recorder.dropped
    rows = FLOOD * ROWS
    print(
        f"{rows:,} rows of actions as fast as they are taken: {rows / seconds / 1e6:.2f} M rows/s,"
    )
    print(f"merged and closed; {rows / used / 1e6:.2f} M rows a second of processor time")


def size(noise: bool) -> None:
    """Bytes that a row of actions takes: rows of the sample run over and over, each step's
    measurements scaled by about 1 %, or random normals in every column of measurements."""
    sample, random = sample_actions(), np.random.default_rng(0)
    last = len(next(iter(sample.values()))) - ROWS
    with tempfile.TemporaryDirectory() as folder:
        with lldscope.Recorder(Path(folder) / "run") as recorder:
            for step in range(SIZED):
                at = step * ROWS % last
                columns = {name: values[at : at + ROWS] for name, values in sample.items()}
                columns["response_id"] = np.arange(ROWS)
                for name, values in columns.items():
                    if values.dtype.kind == "f":
                        normal = random.normal(size=ROWS if noise else None)
                        columns[name] = np.float32(normal if noise else values * (1 + normal / 100))
                recorder.actions(step=step, **columns)
                recorder.step(step=step)
                recorder.flush()
        assert not recorder.dropped, recorder.dropped
        n_bytes = sum(f.stat().st_size for f in Path(folder).rglob("actions/*.parquet"))
    what = "random normals" if noise else "rows of the sample run, scaled"
    print(f"{n_bytes / SIZED / ROWS:.1f} bytes a row of actions: {what}")


# -- what is printed ------------------------------------------------------------------------------


def show(results: dict[str, Told]) -> None:
    values = len(sample_actions()) * ROWS
    print(
        f"Milliseconds in the training thread: p50 / p99 / max; between calls {TRAINING} s of work"
    )
    for task, n in (("scalars", len(NAMES)), ("actions", values)):
        print(f"-- {task}: {n:,} values a step")
        for name, result in results.items():
            line(name, result.get(task, {}), n)
        ratios(results, task)
    print("-- reading: seconds until readable; load and draw one million points; peak memory")
    for name, result in results.items():
        loaded = result.get("load", {})
        cells = [
            _seconds(result.get("readable", {}).get("seconds")),
            _seconds(loaded.get("seconds")) + f" ({_seconds(loaded.get('processor'))} processor)",
            _seconds(loaded.get("draw")),
            _seconds(result.get("million", {}).get("seconds")) + " to write them",
            "{:.0f} MiB at most, {:.0f} before the first row".format(
                *(result.get("actions", {}).get(k, 0) for k in ("peak_mib", "began_mib"))
            ),
        ]
        print(f"{name:12} {' | '.join(cells)}")


def line(name: str, row: dict[str, Any], n: int) -> None:
    if "clock" not in row:
        print(f"{name:12} {row.get('failed', 'not measured')}")
        return
    clock, processor = ("{:.3f} / {:.3f} / {:.2f}".format(*row[k]) for k in ("clock", "processor"))
    rows = row["steps"] * (n if n == len(NAMES) else ROWS)
    each = "value" if n == len(NAMES) else "row"
    print(
        f"{name:12} clock {clock} | processor {processor} | {1e6 * row['clock'][0] / n:.1f} ns a "
        f"value | {row['bytes'] / rows:.1f} bytes a {each}"
        + (f" | keeps {row['keeps']}" if each == "row" else "")
    )


def ratios(results: dict[str, Told], task: str) -> None:
    """By processor time, which other work on the machine moves less than the clock."""
    ours = results.get("lldscope", {}).get(task, {}).get("processor")
    for name, result in results.items():
        if ours and name != "lldscope" and "processor" in result.get(task, {}):
            p50, p99 = (result[task]["processor"][i] / ours[i] for i in (0, 1))
            print(f"{name} / lldscope: processor p50 {p50:.1f}, p99 {p99:.1f}")


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


if __name__ == "__main__":
    main(sys.argv[1:])
