"""`make elsewhere`: the decisive tests again under other conditions than those of `make test`.

Both runs at once; prints how each ended, and what failed. Exit code 1 if anything did.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .conditions import Condition, conditions

ROOT = Path(__file__).parents[2]
PYTEST = (
    sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not (browser or slow)",
)


def main() -> int:
    with ThreadPoolExecutor(2) as pool:
        return int(not all(pool.map(passes, conditions())))


def passes(condition: Condition) -> bool:
    """Run the tests in a process of their own. pytest fails where it finds none, too."""
    done = subprocess.run(
        [*PYTEST, *condition.options, *condition.tests], cwd=ROOT, env=condition.variables(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
    )
    output = done.stdout if done.returncode else done.stdout.rstrip().rpartition("\n")[2]
    print(f"{condition.name}: {output}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
