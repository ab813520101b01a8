"""Damage to a run, drawn at random, for as long as wanted.

python -m tests.long_fuzz MINUTES [SEED]

Every failure is printed once, with the seed that gives it again; so is what asks for more than
MOST_BYTES of memory, which ends the search.
"""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from shutil import copytree

sys.path[:0] = [str(Path(__file__).parent / room) for room in ("helpers", "query")]

MOST_BYTES = 2 << 30


def watch_memory(state: dict[str, int]) -> None:
    """End the process, with the strike it is at and where, once it holds more than MOST_BYTES."""
    while True:
        time.sleep(0.05)
        size = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if size > MOST_BYTES:
            print(f"{state}: it holds {size >> 20} MiB", flush=True)
            faulthandler.dump_traceback()
            os._exit(1)


def main(minutes: float, seed: int | None) -> None:
    import fuzz
    from test_fuzz import record

    import lldscope
    from lldscope.recording import writer

    seed = int.from_bytes(os.urandom(4)) if seed is None else seed
    writer.CLOSE_MERGE_BYTES = -1  # keep the parts apart
    end, strikes, failures = time.monotonic() + 60 * minutes, 0, set()
    state = {"seed": seed, "strike": strikes}
    threading.Thread(target=watch_memory, args=[state], daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="lldscope-fuzz-") as folder:
        unharmed = Path(folder) / "unharmed"
        record(unharmed / "runs" / "run", 1)
        record(unharmed / "other", 2)
        with lldscope.open_run(unharmed / "runs" / "run") as run:
            truth = fuzz.answers(run)
        while time.monotonic() < end:
            with tempfile.TemporaryDirectory(dir=folder) as harmed:
                copytree(unharmed, harmed, dirs_exist_ok=True)
                try:
                    rng = random.Random(f"{seed} {strikes}")
                    fuzz.strike(Path(harmed) / "runs" / "run", rng, truth)
                except Exception as error:
                    last = traceback.extract_tb(error.__traceback__)[-1]
                    what = f"{type(error).__name__} at {last.filename}:{last.lineno}"
                    if what not in failures:
                        failures.add(what)
                        print(f"seed {seed}, strike {strikes}: {what}: {error}")
                        print(*getattr(error, "__notes__", ()), sep="\n", flush=True)
                state["strike"] = strikes = strikes + 1
    print(f"{strikes} strikes with seed {seed}: {len(failures)} kinds of failure")
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
