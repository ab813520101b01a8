"""`lldscope check` on a sample run, from the shell: processor time of the whole process.

python -m benchmarks.check [CHECKOUT]     beside another build: a worktree of it

Modules are compiled before, as those of an installed package are.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from lldscope.runs import find_runs

HERE = Path(__file__).parents[1]
SAMPLES = HERE / "sample_runs"
ROUNDS = 7
Command = tuple[list[str], Path]  # words, and where it runs


def main(other: str | None = None) -> None:
    run = str(find_runs(SAMPLES)[0])
    commands: dict[str, Command] = {
        name: ([sys.executable, "-c", code], HERE)
        for name, code in (
            ("python -c pass", "pass"), ("import click", "import click"),
            ("import duckdb", "import duckdb"),
        )
    }
    for build, where in {"": HERE, **({" (other)": Path(other)} if other else {})}.items():
        lldscope = [sys.executable, "-m", "lldscope", "check"]
        commands |= {
            f"check{build}": ([*lldscope, run], where),
            f"check --help{build}": ([*lldscope, "--help"], where),
        }
    used = dict(zip(commands, timed(list(commands.values())), strict=True))
    for name, seconds in used.items():
        base = "python -c pass" if "help" in name else "import duckdb"
        print(f"{name:26} {seconds:.3f} s; / {base} {seconds / used[base]:.2f}")


def timed(commands: list[Command]) -> list[float]:
    """Processor seconds of each command, in turns, so that other work meets all alike."""
    seconds: list[list[float]] = [[] for _ in commands]
    with tempfile.TemporaryDirectory() as folder:
        where = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        where["PYTHONPYCACHEPREFIX"] = f"{folder}/pyc"
        for number in range(1 + ROUNDS):
            where["XDG_CACHE_HOME"] = f"{folder}/{number}"
            for (command, place), used in zip(commands, seconds, strict=True):
                used.append(_used(command, where, place))
    return [median(used[1:]) for used in seconds]


def _used(command: list[str], where: dict[str, str], place: Path) -> float:
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=where, cwd=place
    )
    _, _, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(*sys.argv[1:])
