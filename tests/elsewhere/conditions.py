"""Which tests are repeated elsewhere, and what elsewhere is."""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple

from .instruction_sets import SWITCHES, instruction_sets

DECISIVE = (
    "tests/trainer/test_retrieval_index.py",
    "tests/trainer/test_environment.py",
    "tests/trainer/test_reward.py",
    "tests/trainer/test_rollout.py",
    "tests/losses",
    "tests/diagnosis/test_rules.py",
    "tests/evaluation/test_bank.py::test_evaluate_counts_the_alarms_of_the_rules",
    "tests/recording/test_recorder.py",
    "tests/importers/test_import.py",
    "tests/importers/test_import_stores.py",
    "tests/report/test_report.py",
    "tests/cli/test_cli.py::test_check_prints_the_contract_and_exits_by_the_verdict",
    "tests/cli/test_cli.py::test_what_a_terminal_cannot_show_is_escaped",
    "tests/dashboard/test_figures.py::test_a_group_is_the_mean_of_the_runs_that_have_a_step",
    "tests/dashboard/test_figures.py::test_the_dying_run_shows_its_phases_and_alarms",
    "tests/dashboard/test_pages.py::test_a_critical_run_begins_with_cause_action_and_the_way_to_the_evidence",
    "tests/dashboard/test_pages.py::test_the_list_is_sorted_filtered_and_grouped_as_the_address_says",
)
"""What decides something or writes it down: searches, losses, rules, verdicts of recorded runs, the
recorder, imports, reports, the command line, the dashboard's words and figures. Detectors, phases
and signals are numbers alone, which test_anywhere.py compares between instruction sets. No test of
these trains, takes more than a few seconds or needs a browser."""


WRITTEN = tuple(
    test
    for test in DECISIVE
    if test.startswith(("tests/recording", "tests/importers", "tests/report", "tests/cli"))
)
"""Those that read and write text, for a locale that knows ASCII alone."""


class Condition(NamedTuple):
    """`environment`: changes to this one, None for a variable that is taken out."""

    name: str
    environment: dict[str, str | None]
    options: tuple[str, ...] = ()
    tests: tuple[str, ...] = DECISIVE

    def variables(self) -> dict[str, str]:
        merged = os.environ | self.environment
        return {name: value for name, value in merged.items() if value is not None}


def conditions() -> list[Condition]:
    """The fewest instructions, an order, a hash seed, a zone that is not whole hours from UTC and
    a language that writes 1,5 or knows ı, all at once; and ASCII alone."""
    unset: dict[str, str | None] = dict.fromkeys(SWITCHES)
    fewest = unset | instruction_sets()["baseline"]
    other: dict[str, str | None] = {"TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "1"}
    language = _language()
    if language:
        other["LC_ALL"] = language
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    return [
        Condition(
            f"baseline instructions, another order and zone, {language or 'no other language'}",
            fewest | other, ("-p", "tests.elsewhere.order", "--order", "1"),
        ),
        Condition("locale C, no UTF-8", dict(ascii_alone), tests=WRITTEN),
    ]


def _language() -> str:
    """A locale of Turkey or Germany, if one is installed."""
    try:
        listed = subprocess.run(["locale", "-a"], capture_output=True, text=True).stdout.split()
    except FileNotFoundError:
        return ""
    names = ("tr_tr.utf8", "de_de.utf8")
    return next((n for n in listed if n.lower().replace("-", "") in names), "")
