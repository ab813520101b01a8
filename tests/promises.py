"""`python -m tests.promises --mutate [TEXT…]`: take the code out that keeps a promise, and see its
tests fail. `--left` does so for those of which no failure is written down yet.

Every promise of SECURITY.md, docs/security.md and docs/store.md names its tests (promises.txt in
tests/cases, or the row of its table), and mutations.txt says which line keeps it. Each line is
changed in a copy of the checkout, and the tests of the promise run there. mutations.md gets a row
for each: the test that failed first, or that none did. With TEXT, only promises and files that hold
one of the texts. Exit code 1 if a change survived.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PROMISES, MUTATIONS = ROOT / "tests/cases/promises.txt", ROOT / "tests/cases/mutations.txt"
RESULTS = ROOT / "tests/cases/mutations.md"
LINK = re.compile(r"\]\(\.\./tests/([\w/]+\.py)#test_(\w+)\)")
SECONDS = 600  # that the tests of a promise may take; a change that makes them wait has survived
HEAD = """# Promises whose code was taken out

`python -m tests.promises --mutate` changes one line that keeps a promise, in a copy, and runs the
tests of the promise.

| promise | in | without | fails | seconds | on |
|---|---|---|---|---|---|
"""


class Mutation(NamedTuple):
    document: str
    begins: str
    file: str
    old: str
    new: str


def table(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(document, fields of a line) of promises.txt and mutations.txt."""
    document = ""
    for line in path.read_text("utf-8").splitlines():
        if line.endswith(".md"):
            document = line
        elif line and not line.startswith("#"):
            yield document, line.split(" => ")


def mutations() -> list[Mutation]:
    return [Mutation(document, *fields) for document, fields in table(MUTATIONS)]


def tests_of() -> dict[tuple[str, str], list[str]]:
    """(document, how a sentence begins) → its tests, as pytest names them; without sentences that
    promise nothing."""
    named = {
        (document, begins): [f"tests/{t.replace('::', '::test_')}" for t in tests.split(", ")]
        for document, (begins, tests) in table(PROMISES) if tests != "-"
    }
    document = "docs/store.md"
    for line in (ROOT / document).read_text("utf-8").splitlines():
        if line.startswith("| ") and (links := LINK.findall(line)):
            begins = line.rsplit(" | ", 1)[0].split(" | ")[0]
            named[document, begins] = [f"tests/{file}::test_{name}" for file, name in links]
    return named


def copy(folder: Path) -> dict[str, str]:
    """A copy of the checkout, and the environment in which its packages are imported."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    with subprocess.Popen(
        ["tar", "c", "--null", "-T", "-"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as pack:
        assert pack.stdin
        unpack = subprocess.Popen(["tar", "x", "-C", str(folder)], stdin=pack.stdout)
        pack.stdin.write(files.stdout)
        pack.stdin.close()
        assert unpack.wait() == 0
    for name in ("dashboard", "trainer"):
        (folder / f"lldscope_{name}").symlink_to(folder / name)
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": ""}


def first_failure(folder: Path, env: dict[str, str], tests: list[str]) -> str:
    """The test that fails first; empty if none does, or if they could not run, which is printed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return ""
    failures = re.findall(r"^(?:FAILED|ERROR) \S*::test_([^\s\[]+)", done.stdout, re.M)
    if done.returncode not in (0, 1) or (done.returncode == 1) != bool(failures):
        print(done.stdout[-2000:], done.stderr[-500:], file=sys.stderr)
        return ""
    return failures[0] if failures else ""


def key_of(m: Mutation) -> str:
    """How the row of a mutation begins."""
    begins, old = (text.replace("|", "\\|") for text in (m.begins.strip("|- "), m.old))
    return f"| {m.document}: {begins} | {m.file} | `{old}` |"


def write_row(m: Mutation, rest: str) -> None:
    """Put the row of a mutation into its place; what others write meanwhile stays."""
    lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.exists() else []
    keys = [key_of(each) for each in mutations()]
    rows = {key: line for key in keys for line in lines if line.startswith(key)}
    rows[key_of(m)] = f"{key_of(m)} {rest}"
    ordered = [rows[key] for key in dict.fromkeys(keys) if key in rows]
    RESULTS.write_text(HEAD + "".join(f"{row}\n" for row in ordered), "utf-8")


def has_failure(m: Mutation) -> bool:
    rows = RESULTS.read_text("utf-8").splitlines() if RESULTS.exists() else []
    return any(row.startswith(key_of(m)) and "**nothing**" not in row for row in rows)


def mutate(texts: list[str], only_left: bool) -> int:
    tests, survivors = tests_of(), 0
    with tempfile.TemporaryDirectory(prefix="promises-") as name:
        folder = Path(name)
        env = copy(folder)
        for m in mutations():
            if texts and not any(text in f"{m.document}: {m.begins} {m.file}" for text in texts):
                continue
            if only_left and has_failure(m):
                continue
            path = folder / m.file
            sound = path.read_text("utf-8")
            path.write_text(sound.replace(m.old, m.new), "utf-8")
            start = time.monotonic()
            try:
                failed = first_failure(folder, env, tests[m.document, m.begins])
            finally:
                path.write_text(sound, "utf-8")
            survivors += not failed
            today = time.strftime("%Y-%m-%d", time.gmtime())
            seconds = f"{time.monotonic() - start:.0f}"
            write_row(m, f"{failed or '**nothing**'} | {seconds} | {today} |")
            print(key_of(m), failed or "NOTHING", seconds, flush=True)
    return int(survivors > 0)


if __name__ == "__main__":
    action, *texts = sys.argv[1:] or [""]
    if action not in ("--mutate", "--left"):
        sys.exit(__doc__)
    sys.exit(mutate(texts, action == "--left"))
