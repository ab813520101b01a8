"""Shared by the tests: small runs with made-up numbers, written through the real recorder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import browsing
import hypothesis
import numpy as np
import pytest
from browsing import CHROMIUM, FLAGS
from own_environments import BY_HAND, FOLDER, OWN

import lldscope

collect_ignore = [
    test for name, tests in (OWN | BY_HAND).items() for test in tests
    if Path(sys.prefix) != FOLDER / name
]  # fmt: skip

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("shared machine", deadline=None)
hypothesis.settings.load_profile("shared machine")

# A shell starts background jobs with Ctrl-C ignored, and children inherit that: the tests that
# press it would wait forever.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = ("test_environments.py", "test_gpu.py", "test_ranks.py", "test_s3.py", "test_study.py")
# What CI's machine may lack. All else that a test can need is installed by `make test`.
MAY_LACK = (
    "no file system can be mounted here",
    "the benchmarks' files are not on this machine",
    "Debian's Prometheus is not on this machine",
)


def in_ci_not_skipped(report: Any) -> Any:
    """The report of a test or module; in CI one that was skipped without such a reason failed."""
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        file, line, reason = report.longrepr
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith(MAY_LACK):
            report.outcome, report.longrepr = "failed", f"{file}:{line}: skipped in CI: {reason}"
    return report


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


def record_steps(
    recorder: lldscope.Recorder, steps: range, *, seed: int = 0, groups: int = 4, size: int = 4
) -> None:
    """Steps with plausible, made-up numbers in every main table, deterministic in (seed, step)."""
    for step in steps:
        rng = np.random.default_rng([seed, step])
        n = groups * size
        ids = np.arange(n)
        correct = rng.random(n) < 0.5
        n_actions = rng.integers(1, 4, n)
        tokens = rng.integers(3, 20, n_actions.sum())
        old = -rng.gamma(2.0, 1.0, len(tokens)) * tokens / 4
        post = old + rng.normal(0.02, 0.3, len(tokens))
        rescored = np.repeat(ids % 3 > 0, n_actions)
        recorder.updates(
            step=step, update=np.arange(3), grad_norm=rng.gamma(3.0, 0.2, 3), grad_finite=True,
            skipped=False, ratio_max=1.5, n_clipped=rng.integers(0, 3, 3), n_tokens=50,
        )  # fmt: skip
        recorder.responses(
            step=step, response_id=ids, group_id=ids // size, data_source="made_up",
            reward=correct.astype(float), advantage=np.where(correct, 1.0, -1.0), correct=correct,
            n_actions=n_actions, n_tokens=np.add.reduceat(tokens, n_actions.cumsum() - n_actions),
            n_searches=n_actions - 1, n_invalid=rng.integers(0, 2, n),
            truncated=rng.random(n) < 0.1,
        )  # fmt: skip
        recorder.actions(
            step=step, response_id=np.repeat(ids, n_actions),
            action_index=np.concatenate([np.arange(k) for k in n_actions]), kind="search",
            n_tokens=tokens, logp_old_sum=old, logp_post_sum=np.ma.array(post, mask=~rescored),
            docs_hash=[f"d{i}" for i in rng.integers(0, 3, len(tokens))], tool_ok=True,
            llds_gate=rng.random(len(tokens)) < 0.2,
        )  # fmt: skip
        recorder.step(
            step=step, n_responses=n, n_correct=correct.sum(), reward_sum=correct.sum(),
            reward_sq_sum=correct.sum(), n_tokens=tokens.sum(), entropy_sum=0.4 * tokens.sum(),
            time=1.7e9 + step, loss_policy=0.1, lr=1e-4,
        )  # fmt: skip


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that another process or thread does; fail when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def make_run(tmp_path: Path):
    """Write a finished run with made-up numbers and return its path."""

    def make(name: str = "run", steps: range = range(30), **options: Any) -> Path:
        with lldscope.Recorder(tmp_path / name, trainer="tests") as recorder:
            record_steps(recorder, steps, **options)
        return tmp_path / name

    return make


@pytest.fixture
def lldscope_command():
    """Run the command line as a user would, in a process of its own."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "lldscope", *map(str, arguments)],
            capture_output=True, timeout=120, **{"encoding": "utf-8"} | options,
        )  # fmt: skip

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
    with browsing.opened(chromium, address) as tab:
        yield tab
