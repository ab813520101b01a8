"""Tests that run in environments of their own; how environments are made; what CI may skip."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from own_environments import AGAIN, FOLDER, OWN, TESTS

TOOL = SimpleNamespace(**runpy.run_path(str(TESTS.parent / ".ci" / "environment.py")))


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


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """An environment whose Python, and a uv which, only write down what they are called with."""

    def program(path: Path, then: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{path.name} $*" >> {tmp_path}/calls\n{then}\n')
        path.chmod(0o755)

    program(tmp_path / "env/bin/python", "")
    program(tmp_path / "env/bin/pip", "")
    program(tmp_path / "path/uv", 'echo " + $PLAN" >&2; exit $ENDS')
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=os.pathsep)
    monkeypatch.setenv("PLAN", "torch==2.13.0+cpu")
    monkeypatch.setenv("ENDS", "0")
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)

    def install(extras: str = "dev") -> list[str]:
        (tmp_path / "calls").unlink(missing_ok=True)
        assert TOOL.install(str(tmp_path / "env"), "versions.txt", extras, "pytest") == 0
        lines = (tmp_path / "calls").read_text().splitlines()
        return [line for line in lines if "config list" not in line and "--dry-run" not in line]

    return install


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


@pytest.mark.parametrize(
    ("ci", "ended"),
    [("", "4 skipped, 1 xfailed"), ("true", "1 failed, 1 skipped, 1 xfailed, 2 errors")],
)
def test_ci_skips_nothing_for_want_of_a_package(tmp_path, ci, ended):
    (tmp_path / "test_skips.py").write_text(SKIPS)
    (tmp_path / "test_module.py").write_text('import pytest\npytest.importorskip("none_such")\n')
    path = os.pathsep.join([str(TESTS), str(TESTS / "helpers"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", "-p", "conftest",
         "-p", "no:cacheprovider", "-p", "no:dash", "-c", os.devnull, "--rootdir", tmp_path,
         tmp_path],
        env={**os.environ, "CI": ci, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=120,
    )
    assert done.stdout.splitlines()[-1].startswith(ended), done.stdout
