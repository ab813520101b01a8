"""`make bench`: the benchmarks that need nothing else, one after the other. Each prints its figures
and their ratios.

python -m benchmarks [NAME …]     only those named
python -m benchmarks trl --model smollm2   the same with a language model
python -m benchmarks --help       every benchmark and what it measures
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

from . import (
    alarms,
    analyzer,
    check,
    diagnose,
    faults,
    healthy,
    host,
    importing,
    loggers,
    many_runs,
    mismatch,
    recording,
    rival_packages,
    training,
    trl,
)

BENCHMARKS = {
    "recording": recording.main,
    "mismatch": mismatch.main,
    "training": training.main,
    "host": host.main,
    "trl": trl.main,
    "check": check.main,
    "import": importing.main,
    "diagnose": diagnose.main,
    "loggers": loggers.main,
    "alarms": alarms.main,
    "analyzer": analyzer.main,
    "many_runs": many_runs.main,
}

# They take long or install packages, so only those that are named run.
ON_REQUEST = {
    "faults": faults.main, "healthy": healthy.main, "rivals": rival_packages.main,
}
BY_NAME = {**BENCHMARKS, **ON_REQUEST}

# Commands of their own: they need arguments, a server, another environment or long. What else is
# here serves others.
ALONE = (
    "candidates", "dashboard", "engines", "growth", "long_run", "many_remote_runs", "noise",
    "object_store", "options", "ray_job", "recall", "retrieval", "slow_disk",
)


def listing() -> str:
    """Every benchmark with the first sentence of its module."""
    here = {
        name: Path(main.__code__.co_filename)  # "import" is `importing.py`
        for name, main in BY_NAME.items()
    }
    alone = {name: Path(__file__).with_name(f"{name}.py") for name in ALONE}
    width = max(map(len, (*here, *alone)))
    lines = ["run by name, or all of them:"]
    lines += [f"  {name:{width}}  {_says(here[name])}" for name in BENCHMARKS]
    lines += ["", "by name only, because they take long or install packages:"]
    lines += [f"  {name:{width}}  {_says(here[name])}" for name in ON_REQUEST]
    lines += ["", "commands of their own, as python -m benchmarks.NAME (their files say how):"]
    lines += [f"  {name:{width}}  {_says(file)}" for name, file in alone.items()]
    return "\n".join(lines)


def _says(file: Path) -> str:
    """The first line of a module's docstring, without importing it."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.split("\n", 1)[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description="Benchmarks; each prints its figures and ratios.",
        epilog=listing(), formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="[default: all of the first list]")
    parser.add_argument(
        "--model", choices=trl.LANGUAGE_MODELS, help="trl alone: with this language model"
    )
    arguments = parser.parse_args()
    names = arguments.names
    if arguments.model and names != ["trl"]:
        parser.error("--model is for trl alone")
    if unknown := [name for name in names if name not in BY_NAME]:
        parser.error(f"there is no {unknown[0]} to run by name; --help lists all")
    for name in names or BENCHMARKS:
        print(f"== {name}", flush=True)
        BY_NAME[name](*filter(None, [arguments.model]))


if __name__ == "__main__":
    main()
