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

# How long an example takes says more about the machine than about the code. Others are drawn at
# every run, so there may be few of them.
hypothesis.settings.register_profile("shared machine", deadline=None, max_examples=50)
hypothesis.settings.load_profile("shared machine")

# A shell starts background jobs with Ctrl-C ignored, and children inherit that: the tests that
# press it would wait forever.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = ("test_environments.py", "test_gpu.py", "test_ranks.py", "test_s3.py", "test_study.py")
# What `make quick` leaves out of its rooms: more than half of their time, by measurement.
LENGTHY = """
    test_a_damaged_run_is_read_as_it_always_was
    test_a_field_of_another_kind_ends_neither_report_nor_list
    test_a_live_manifest_that_is_changed_under_its_recorder_is_reported_for_good
    test_a_live_run_is_followed_from_afar test_a_live_run_that_began_with_many_rows_is_followed
    test_a_query_that_does_not_stop_ends_with_the_process
    test_a_run_afar_that_lost_its_run_json_opens_and_says_so
    test_a_score_that_defines_the_label_is_withheld test_a_small_run_that_dies_early_is_critical
    test_an_alarm_lasts_as_long_as_the_state_that_it_saw
    test_answers_do_not_depend_on_when_somebody_looked
    test_damage_is_named_and_a_repair_brings_back_what_is_intact test_deep_nesting_gets_a_sentence
    test_each_limit_of_an_answer_has_its_sentence test_evaluate_counts_the_alarms_of_the_rules
    test_every_row_counts_once_or_is_superseded_by_one_of_its_own_rank
    test_everything_declared_is_written test_false_alarms_are_no_more_frequent_than_guaranteed
    test_kept_signals_are_not_computed_again_and_new_steps_alone_are_added
    test_lint_finds_nothing_in_what_this_trainer_records test_live_and_replayed_answers_are_the_same
    test_no_place_of_a_statement_hides_one_that_acts test_nothing_begins_after_it_was_seen
    test_ones_own_detector_is_ranked test_pairs_are_counted_like_by_hand
    test_random_courses_are_judged_as_before test_sentences
    test_signals_are_the_same_however_many_stretches
    test_steps_without_any_measurement_change_nothing
    test_the_end_of_the_improvement_is_not_taken_for_the_fall
    test_the_guarantee_is_not_met_by_never_firing test_the_message_names_what_was_injected
    test_the_papers_curve_with_noise test_the_runs_of_a_folder_are_one_line
    test_what_is_kept_and_does_not_fit_is_passed_over
    test_what_was_sealed_is_there_after_a_power_cut
""".split()  # noqa: SIM905
# What CI's machine may lack. All else that a test can need, `make test-all` installs.
MAY_LACK = (
    "no file system can be mounted here",
    "only root can become another account",
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
    parser.addoption("--quick", action="store_true", help="leave out what takes long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that take minutes come first, so that no worker is left alone with one at the end."""
    if config.getoption("--quick"):
        items[:] = [item for item in items if item.originalname not in LENGTHY]
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
    (env, input …) in a process of its own.
    """

    def run(
        *arguments: Any, cwd: Path | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lldscope", *map(str, arguments)]
        if options:
            return subprocess.run(
                command, capture_output=True, timeout=600, cwd=cwd,
                **{"encoding": "utf-8"} | options,
            )
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        code = 0
        with monkeypatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["lldscope", *command[3:]])
            if cwd is not None:
                patch.chdir(cwd)
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
