"""Thousands of runs: the list on the command line and in the dashboard, by processor time.

python -m benchmarks.many_runs [RUNS [CHECKOUT]]     by default 5,000 copies of one short run

CHECKOUT is a worktree of another build, whose lists are made in turns with these.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from lldscope.monitor.run_index import RunIndex, fingerprint
from lldscope.monitor.summary import read_summary

from .long_run import write_long_run

HERE = Path(__file__).parents[1]
RUNS = 5000
READ = 100  # runs that are listed without an index
SHORT = (60, 8, 2)  # steps, responses and actions of a run


def main(runs: int = RUNS, other: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        few, many = Path(folder) / "few", Path(folder) / "many"
        write_long_run(few / "run-00000", *SHORT)
        make_copies(few, READ)
        make_copies(shutil.copytree(few, many), runs)
        (Path(folder) / "empty").mkdir()
        builds = {"": HERE, **({" (other)": Path(other)} if other else {})}
        for name, where in builds.items():
            os.environ["XDG_CACHE_HOME"] = f"{folder}/cache{name}"
            alone, _ = measure(str(Path(folder) / "empty"), where)
            print(f"lldscope runs, no run{name}       {alone:.2f} s")
            first, _ = measure(str(few), where)
            print(f"{READ} runs, no index{name}          {per_run(first - alone, READ)} a run")
            again, _ = measure(str(few), where)
            each = again / READ * 1000
            print(f"{READ} runs, from the index{name}    {again:.2f} s, {each:.0f} ms a run")
            room = "benchmarks" if (where / "benchmarks").is_dir() else "tests.bench"
            code = f"from pathlib import Path; from {room}.many_runs import fill"
            code += f"; fill(Path({str(many)!r}))"
            subprocess.run([sys.executable, "-c", code], check=True, cwd=where)
        for _ in range(3):
            for name, where in builds.items():
                os.environ["XDG_CACHE_HOME"] = f"{folder}/cache{name}"
                listed, memory = measure(str(many), where)
                a_run = per_run(listed, runs)
                print(f"{runs:,} runs, from the index{name} {a_run} a run, {memory:.0f} MiB")
        code = f"from benchmarks.many_runs import page; page({str(many)!r})"
        subprocess.run([sys.executable, "-c", code], check=True)


def make_copies(root: Path, runs: int) -> None:
    """Copies of the first run, under ids of their own."""
    first = root / "run-00000"
    for number in range(1, runs):
        copy = root / f"run-{number:05d}"
        if not copy.exists():
            shutil.copytree(first, copy)
            info = json.loads((copy / "run.json").read_text()) | {"id": f"{number:032x}"}
            (copy / "run.json").write_text(json.dumps(info | {"group": f"group {number % 50}"}))


def fill(root: Path) -> None:
    """The index that reading each of the copies would make."""
    names = sorted(path.name for path in root.iterdir() if path.name.startswith("run-"))
    one, index = read_summary(names[0], root / names[0], root), RunIndex(root)
    for name in names:
        index.put(replace(one, name=name, title=name), fingerprint(root / name))
    index.save(names)


def measure(root: str, where: Path) -> tuple[float, float]:
    """Processor seconds of a build's `lldscope runs`, and its peak memory in MiB."""
    command = [sys.executable, "-m", "lldscope", "runs", "--json", root]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=where
    )
    _, _, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 2**10


def per_run(seconds: float, runs: int) -> str:
    return f"{seconds:.2f} s, {1000 * seconds / runs:.2f} ms"


def page(root: str) -> None:
    """The dashboard's list, in a process of its own: first look, the next, a word typed."""
    import time

    from dash._utils import to_json
    from lldscope_dashboard.data.run_registry import RunRegistry
    from lldscope_dashboard.data.run_summaries import RunSummaries
    from lldscope_dashboard.pages.list_page import list_page

    def memory() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    before = memory()
    summaries = RunSummaries(RunRegistry(Path(root)))
    for what, query in (
        ("first look", {}), ("the next", {}), ("filtered", {"q": ["run-012"]}),
        ("sorted", {"sort": ["-reward"]}), ("page 50", {"page": ["50"]}),
    ):
        start = time.process_time()
        size = len(to_json(list_page(summaries, query)))
        seconds = time.process_time() - start
        print(f"page of runs, {what:13} {seconds:.2f} s, {size / 1e3:.0f} kB before compression")
    print(f"memory                      {memory():.0f} MiB, {before:.0f} with the libraries alone")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
