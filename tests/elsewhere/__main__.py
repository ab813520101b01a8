"""`make elsewhere`: the decisive tests again under other conditions than those of `make test`.

python -m tests.elsewhere                   several changes at a time
python -m tests.elsewhere CONDITION …       one by one, those whose name contains one of these texts

Two runs at a time; prints a table, and what failed. Exit code 1 if anything did.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from .conditions import Condition, conditions, together

ROOT = Path(__file__).parents[2]
PYTEST = (
    sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not (browser or slow)",
)
NICE = ("nice", "-n", "10")
BUSY = (*NICE, sys.executable, "-c", "while True: pass")


@dataclass(frozen=True)
class Result:
    condition: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    output: str  # of pytest

    @property
    def right(self) -> bool:
        return self.failed == 0 < self.passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("condition", nargs="*", help="part of a condition's name")
    parts = parser.parse_args().condition
    selection = together()
    if parts:
        selection = [c for c in conditions() if any(part in c.name for part in parts)]
    quiet, loaded = ([c for c in selection if c.loaded == beside] for beside in (False, True))
    print(f"{'condition':<66}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}", flush=True)
    results = []
    with ThreadPoolExecutor(2) as pool:
        results += map(show, pool.map(repeat, quiet))
    with busy(2 if loaded else 0):
        results += map(show, map(repeat, loaded))
    for result in results:
        if not result.right:
            print(f"\n== {result.condition}\n{result.output}")
    return int(not results or not all(result.right for result in results))


def repeat(condition: Condition) -> Result:
    """Run the tests in a process of their own."""
    began = time.monotonic()
    nice = NICE if condition.loaded else ()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [*nice, *PYTEST, *condition.options, f"--junitxml={report}", *condition.tests],
            cwd=ROOT, env=condition.variables(), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
        )
        seconds = time.monotonic() - began
        if not report.exists():
            return Result(condition.name, 0, 1, 0, seconds, done.stdout)
        (suite,) = ElementTree.parse(report).getroot()
    total, *others = (int(suite.attrib[n]) for n in ("tests", "failures", "errors", "skipped"))
    failures, errors, skipped = others
    failed = failures + errors or int(done.returncode != 0)
    return Result(condition.name, total - sum(others), failed, skipped, seconds, done.stdout)


def show(result: Result) -> Result:
    """The result, after its row of the table."""
    numbers = f"{result.passed:>8}{result.failed:>8}{result.skipped:>9}{result.seconds:>9.0f}"
    print(f"{result.condition:<66}{numbers}", flush=True)
    return result


@contextmanager
def busy(n: int) -> Iterator[None]:
    """`n` processes that do nothing but take processor time."""
    loops = [subprocess.Popen(BUSY) for _ in range(n)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main())
