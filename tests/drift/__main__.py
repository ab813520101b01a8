"""`python -m tests.drift [PACKAGE…]`: download the newest release of each trainer that has an
adapter, without what it depends on, and say which of the adapter's seams still fit.

Nothing of a package is run: its files are parsed. Exit code 1 if a seam does not fit, 2 if a
package could not be had.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from .seams import SEAMS, Seam

TRIED = {"trl": "1.16.0", "verl": "0.9.1"}
"""The versions that docs/integrations.md speaks of."""
Found = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def download(package: str, folder: Path) -> zipfile.ZipFile:
    """The newest wheel. Raises OSError."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
         "--python-version=3.12", "--disable-pip-version-check", "--dest", str(folder), package],
        capture_output=True, text=True,
    )
    if done.returncode:
        raise OSError(done.stderr.strip().splitlines()[-1])
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def misfit(tree: ast.Module, seam: Seam) -> str | None:
    """What of a seam is not in its file; None if all of it is."""
    node: Found | None = None
    body = tree.body
    for name in seam.name.split("."):
        node = next((n for n in body if isinstance(n, Found) and n.name == name), None)
        if node is None:
            return f"there is no {name}"
        body = node.body
    assert node is not None
    missing = [name for name in seam.reads if name not in set(names(node))]
    return f"it has no {', '.join(missing)}" if missing else None


def names(function: Found) -> Iterator[str]:
    """Its arguments; a class has none."""
    if isinstance(function, ast.ClassDef):
        return
    arguments = function.args
    for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield a.arg


def look(package: str, wheel: zipfile.ZipFile) -> list[str]:
    """The seams that do not fit, as lines."""
    files = {name.split(".data/purelib/")[-1]: name for name in wheel.namelist()}
    wrong = []
    for seam in SEAMS[package]:
        if seam.file not in files:
            why: str | None = "there is no such file"
        else:
            why = misfit(ast.parse(wheel.read(files[seam.file])), seam)
        if why:
            wrong.append(f"{seam.file}: {seam.name}: {why}")
    return wrong


def main(packages: list[str]) -> int:
    worst = 0
    for package in packages or SEAMS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                wheel = download(package, Path(folder))
            except OSError as error:
                print(f"{package}: {error}")
                worst = 2
                continue
            with wheel:
                version = Path(str(wheel.filename)).name.split("-")[1]
                wrong = look(package, wheel)
        note = "" if version == TRIED[package] else f" (tried with {TRIED[package]})"
        fits = len(SEAMS[package]) - len(wrong)
        print(f"{package} {version}{note}: {fits} of {len(SEAMS[package])} seams fit")
        for line in wrong:
            print(f"  {line}")
        worst = max(worst, int(bool(wrong)))
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
