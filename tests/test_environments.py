"""Tests that run in environments of their own; what CI may skip."""

from __future__ import annotations

import re
import subprocess
from types import SimpleNamespace

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


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("no_such_package is not installed", "failed"),
     ("no file system can be mounted here: mount: permission denied", "skipped")],
)
def test_ci_skips_nothing_for_want_of_a_package(pytestconfig, monkeypatch, reason, outcome):
    (judge,) = (
        plugin.in_ci_not_skipped for plugin in pytestconfig.pluginmanager.get_plugins()
        if hasattr(plugin, "in_ci_not_skipped")
    )
    monkeypatch.setenv("CI", "true")
    skip = SimpleNamespace(
        skipped=True, outcome="skipped", longrepr=("test.py", 3, f"Skipped: {reason}")
    )
    assert judge(skip).outcome == outcome
    monkeypatch.delenv("CI")
    skip.outcome = "skipped"
    assert judge(skip).outcome == "skipped"
