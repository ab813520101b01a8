"""Shared by the tests: small runs with made-up numbers, written through the real recorder."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import browsing
import hypothesis
import pytest
from browsing import CHROMIUM, FLAGS
from own_environments import FOLDER, OWN
from recorded_steps import record_steps

import lldscope
from lldscope.cli import main

collect_ignore = [
    test for name, tests in OWN.items() for test in tests
    if Path(sys.prefix) != FOLDER / name
]

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("shared machine", deadline=None)
hypothesis.settings.load_profile("shared machine")

# A shell starts background jobs with Ctrl-C ignored, and children inherit that: the tests that
# press it would wait forever.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = ("test_environments.py", "test_gpu.py", "test_ranks.py", "test_s3.py", "test_study.py")
# What CI's machine may lack. All else that a test can need, `make test-all` installs.
MAY_LACK = (
    "no file system can be mounted here",
    "only root can become another account",
    "the benchmarks' files are not on this machine",
    "Debian's Prometheus is not on this machine",
    "Debian's nginx is not on this machine",
    "systemd is not on this machine",
)


def in_ci_not_skipped(report: Any) -> Any:
    """The report of a test or module; in CI one that was skipped without such a reason failed."""
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        file, line, reason = report.longrepr
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith(MAY_LACK):
            report.outcome, report.longrepr = "failed", f"{file}:{line}: skipped in CI: {reason}"
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("engine"):
        for package in mark.args:
            if find_spec(package) is None:
                pytest.skip(f"{package} is not installed: make test-all")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    return in_ci_not_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    return in_ci_not_skipped((yield))


def pytest_addoption(parser: pytest.Parser) -> None:
    slow = "how many times slower the pages of the browser tests run"
    parser.addoption("--slower", type=int, default=1, help=slow)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take minutes come first, so that no worker is left alone with one at the end."""
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


def pytest_configure(config: pytest.Config) -> None:
    browsing.slower = config.getoption("--slower")


@pytest.fixture
def make_run(tmp_path: Path):
    """Write a finished run with made-up numbers and return its path."""

    def make(name: str = "run", steps: range = range(30), **options: Any) -> Path:
        with lldscope.Recorder(tmp_path / name, trainer="tests") as recorder:
            record_steps(recorder, steps, **options)
        return tmp_path / name

    return make


@pytest.fixture
def lldscope_command(monkeypatch: pytest.MonkeyPatch):
    """Run the command line as a user would.

    In this process, which has imported everything already; with options for `subprocess.run`
    (env, cwd, input …) in a process of its own.
    """

    def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lldscope", *map(str, arguments)]
        if options:
            return subprocess.run(
                command, capture_output=True, timeout=600, **{"encoding": "utf-8"} | options
            )
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        code = 0
        with monkeypatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["lldscope", *command[3:]])
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode("utf-8"))
        return subprocess.CompletedProcess(command, code, *texts)

    return run


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Debian's chromium, for the tests of a module."""
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a dashboard shows the runs of the module's `root`."""
    with browsing.served(root, tmp_path_factory.mktemp("cache")) as address:
        yield address


@pytest.fixture
def tab(chromium: Any, address: str) -> Iterator[Any]:
    """A fresh tab; the test fails on console errors and on requests to other hosts."""
    with browsing.open_page(chromium, address) as tab:
        yield tab
