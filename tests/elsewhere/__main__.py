"""`make elsewhere`: the decisive tests again under other conditions than those of `make test`.

Both runs at once; prints a table, and what failed. Exit code 1 if anything did.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from .conditions import Condition, conditions

ROOT = Path(__file__).parents[2]
PYTEST = (
    sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not (browser or slow)",
)


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
    print(f"{'condition':<72}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}", flush=True)
    with ThreadPoolExecutor(2) as pool:
        results = [*map(show, pool.map(repeat, conditions()))]
    for result in results:
        if not result.right:
            print(f"\n== {result.condition}\n{result.output}")
    return int(not all(result.right for result in results))


def repeat(condition: Condition) -> Result:
    """Run the tests in a process of their own."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [*PYTEST, *condition.options, f"--junitxml={report}", *condition.tests],
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
    print(f"{result.condition:<72}{numbers}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
