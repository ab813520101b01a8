"""Tests that run in environments of their own; what CI may skip."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from own_environments import AGAIN, FOLDER, OWN, TESTS


@pytest.mark.engine
@pytest.mark.parametrize("name", [*OWN, *AGAIN])
def test_in_an_environment_of_its_own(name):
    python = FOLDER / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{FOLDER / name} is missing: make {FOLDER.name}/{name}/.ready")
    tests = [TESTS / path for path in (OWN | AGAIN)[name]]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         "-m", "slow or not slow" if name in OWN else "not slow", *tests],
        cwd=TESTS.parent, capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_oldest_duckdb_is_the_oldest_allowed():
    (floor,) = re.findall(r'"duckdb>=([\d.]+),', (TESTS.parent / "pyproject.toml").read_text())
    assert f" duckdb=={floor}.0\n" in (TESTS.parent / "Makefile").read_text()


SKIPS = """
import pytest

@pytest.mark.skipif(True, reason="tool is not installed")
def test_marked(): ...

def test_package():
    pytest.importorskip("no_such_package")

def test_machine():
    pytest.skip("no file system can be mounted here: mount: permission denied")

@pytest.mark.xfail(reason="known", strict=True)
def test_known(): assert False
"""


def test_ci_skips_nothing_for_want_of_a_package(tmp_path):
    (tmp_path / "test_skips.py").write_text(SKIPS)
    (tmp_path / "test_module.py").write_text('import pytest\npytest.importorskip("none_such")\n')
    path = os.pathsep.join([str(TESTS), str(TESTS / "helpers"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", "-p", "conftest",
         "-p", "no:cacheprovider", "-p", "no:dash", "-c", os.devnull, "--rootdir", tmp_path,
         tmp_path],
        env={**os.environ, "CI": "true", "PYTHONPATH": path},
        capture_output=True, text=True, timeout=120,
    )
    ended = "1 failed, 1 skipped, 1 xfailed, 2 errors"
    assert done.stdout.splitlines()[-1].startswith(ended), done.stdout
