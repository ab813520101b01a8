"""`lldscope diagnose` on a log of 10,000 steps, cold: seconds by the clock and of the processor.

A console of verl of 20 MB, 53 metrics a step, whose reward falls from step 7,000 on; nothing of it
is in the cache. With the page (`-o`) and without, the median of three.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from .importing import METRICS

STEPS, ROUNDS = 10_000, 3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "train.log")
        log.write_text("".join(line(step, random.Random(step)) for step in range(1, STEPS + 1)))
        for options in ([], ["-o", Path(folder, "page.html")]):
            used = [cold([log, *options], Path(folder, str(i))) for i in range(ROUNDS)]
            clock, processor = (median(seconds) for seconds in zip(*used, strict=True))
            name = "with the page" if options else "on the terminal"
            print(
                f"diagnose of {STEPS:,} steps, {name:15} {clock:.1f} s, of the processor "
                f"{processor:.1f} s"
            )


def line(step: int, draw: random.Random) -> str:
    values = {name: draw.gauss(0.5, 0.1) for name in METRICS}
    rise, fall = 0.2 + step / 20_000, max(0.0, step - 7000) / 4000
    values["critic/score/mean"] = max(0.0, rise - fall) + draw.gauss(0, 0.03)
    values["actor/entropy"] = 0.5 + (step > 7500) + draw.gauss(0, 0.02)
    return " - ".join([f"step:{step}", *(f"{k}:{v!r}" for k, v in values.items())]) + "\n"


def cold(arguments: list[str | Path], cache: Path) -> tuple[float, float]:
    """Seconds by the clock and of the processor of a diagnosis that says critical."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "lldscope", "diagnose", *arguments], stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env=os.environ | {"XDG_CACHE_HOME": str(cache)},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 11, done.returncode
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, processor


if __name__ == "__main__":
    main()
