"""Looks for inputs that reach lines of importers, manifests and SQL which none has reached.

python -m tests.guided_fuzz importers|manifest|sql [MINUTES]     10 by default

It needs libFuzzer for Python: `pip install atheris` (Python 3.11 to 3.13). What reaches something
new is kept in tests/cases/fuzz/NAME, of which tests/test_fuzz_corpus.py runs every file; at the end
only those stay that are needed to reach what all reach. An input that fails is kept with the
others, so that its test fails until it is repaired, and its traceback is printed.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

ROOMS = {
    "importers": ["lldscope.importers", "lldscope.storage"],
    "manifest": ["lldscope.storage", "lldscope.doctor", "lldscope.query"],
    "sql": ["lldscope.query"],
}  # whose lines count
PIECES = re.compile(rb"\w+|\s+|'[^']*'|.", re.S)


def mutator(seeds: list[bytes]) -> Any:
    """libFuzzer's changes, and in half of the cases pieces of one text put into another."""
    import atheris

    pieces = [PIECES.findall(seed) for seed in seeds]

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        dice = random.Random(seed)
        if dice.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        into, other = PIECES.findall(data), dice.choice(pieces)
        at, start = dice.randint(0, len(into)), dice.randrange(len(other))
        into[at : at + dice.choice((0, 1, 1, 4))] = other[start : start + dice.randint(1, 8)]
        return b"".join(into)[:max_size]

    return change


def fuzz(name: str, folder: Path, seconds: int) -> None:
    """libFuzzer, which ends its process; it writes what reaches something new into `folder`/new."""
    import atheris

    seeds = [path.read_bytes() for path in (folder / "seeds").iterdir()]
    with atheris.instrument_imports(include=ROOMS[name]):  # of what is imported for the first time
        import fuzz_targets

        target = fuzz_targets.TARGETS[name](folder / "work")
        for seed in seeds:
            target(seed)
    new, failures = folder / "new", set()

    def one(data: bytes) -> None:
        try:
            target(data)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            if (place := (type(error), last.filename, last.lineno)) not in failures:
                failures.add(place)
                (folder / "failures" / name_of(data)).write_bytes(data)
                traceback.print_exc()

    options = [
        "-max_len=3000", "-use_value_profile=1", "-timeout=60", "-rss_limit_mb=4096",
        f"-artifact_prefix={folder}/failures/",
    ]
    atheris.Setup(
        ["fuzz", str(new), str(folder / "seeds"), f"-max_total_time={seconds}", *options],
        one, custom_mutator=mutator(seeds),
    )
    atheris.Fuzz()


def name_of(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()[:12]


def lines_of(target: Any, data: bytes) -> set[tuple[str, int]]:
    """The lines of the product that an input reaches."""
    lines: set[tuple[str, int]] = set()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if "/lldscope/" not in (file := frame.f_code.co_filename):
            return None
        lines.add((file, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        target(data)
    finally:
        sys.settrace(None)
    return lines


def main(name: str, minutes: float) -> None:
    import fuzz_targets

    corpus = fuzz_targets.CORPUS / name
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lldscope-fuzz-") as folder:
        place = Path(folder)
        for part in ("work", "new", "seeds", "failures", "again"):
            (place / part).mkdir()
        target = fuzz_targets.TARGETS[name](place / "again")
        seeds = target.seeds()
        for data in [*seeds, *(path.read_bytes() for path in corpus.iterdir())]:
            (place / "seeds" / name_of(data)).write_bytes(data)
        subprocess.run(
            [sys.executable, "-m", "tests.guided_fuzz", name, folder, str(int(60 * minutes))],
            check=False,
        )
        reached: set[tuple[str, int]] = set()
        for data in seeds:
            reached |= lines_of(target, data)
        before, corpus_inputs = len(reached), set()
        old = [path.read_bytes() for path in corpus.iterdir()]
        for data in sorted({*old, *(p.read_bytes() for p in (place / "new").iterdir())}, key=len):
            with contextlib.suppress(Exception):
                if (lines := lines_of(target, data)) - reached:
                    reached |= lines
                    corpus_inputs.add(data)
        failures = {path.read_bytes() for path in (place / "failures").iterdir()}
        for path in corpus.iterdir():
            path.unlink()
        for data in corpus_inputs | failures:
            (corpus / name_of(data)).write_bytes(data)
    print(
        f"{len(seeds)} seeds reach {before} lines, {len(corpus_inputs)} inputs of the corpus reach "
        f"{len(reached) - before} more, {len(failures)} fail: {corpus}"
    )


if __name__ == "__main__":
    if len(sys.argv) > 3:
        fuzz(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 10.0)
