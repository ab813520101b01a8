"""Which tests are repeated elsewhere, and what elsewhere is."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, replace

from .instruction_sets import SWITCHES, instruction_sets

DECISIVE = (
    "tests/trainer/test_retrieval_index.py",
    "tests/trainer/test_environment.py",
    "tests/trainer/test_reward.py",
    "tests/trainer/test_rollout.py",
    "tests/losses",
    "tests/diagnosis/test_cadence.py",
    "tests/diagnosis/test_changepoints.py",
    "tests/diagnosis/test_decay.py",
    "tests/diagnosis/test_detectors.py",
    "tests/diagnosis/test_outcome.py",
    "tests/diagnosis/test_phases.py",
    "tests/diagnosis/test_rules.py",
    "tests/query/test_signals.py",
    "tests/evaluation/test_bank.py::test_evaluate_counts_the_alarms_of_the_rules",
    "tests/recording/test_recorder.py",
    "tests/storage/test_compaction.py",
    "tests/importers/test_import.py",
    "tests/importers/test_import_stores.py",
    "tests/report/test_report.py",
    "tests/cli/test_cli.py::test_check_prints_the_contract_and_exits_by_the_verdict",
    "tests/cli/test_cli.py::test_what_a_terminal_cannot_show_is_escaped",
    "tests/cli/test_cli.py::test_short_and_healthy_runs",
    "tests/cli/test_cli.py::test_query_formats",
    "tests/dashboard/test_averages.py",
    "tests/dashboard/test_figures.py::test_the_dying_run_shows_its_phases_and_alarms",
    "tests/dashboard/test_pages.py::test_a_critical_run_begins_with_cause_action_and_the_way_to_the_evidence",
    "tests/dashboard/test_pages.py::test_the_list_is_sorted_filtered_and_grouped_as_the_address_says",
)
"""What decides something or writes it down: searches, losses, signals, detectors, phases, alarms,
verdicts of recorded runs, the recorder, imports, reports, the command line, the dashboard's words
and figures. No test of these trains, takes more than a few seconds or needs a browser."""


ZONES = ("Asia/Kathmandu", "America/St_Johns")
"""Neither is whole hours from UTC, and one has summer time."""


WRITTEN = tuple(
    test
    for test in DECISIVE
    if test.startswith(("tests/recording", "tests/importers", "tests/report", "tests/cli"))
)
"""Those that read and write text, for locales."""

NUMERIC = tuple(
    test
    for test in DECISIVE
    if test.startswith(("tests/losses", "tests/diagnosis", "tests/query", "tests/trainer/test_ro"))
)
"""Those that compute, for instructions between the most and the fewest."""

TIMED = tuple(
    test
    for test in DECISIVE
    if test.startswith(("tests/recording", "tests/storage"))
)
"""Those with files, processes and threads that follow each other, for a loaded machine."""


@dataclass(frozen=True)
class Condition:
    """`environment`: changes to this one, None for a variable that is taken out. `loaded`: two busy
    loops run beside the tests."""

    name: str
    environment: dict[str, str | None]
    options: tuple[str, ...] = ()
    tests: tuple[str, ...] = DECISIVE
    loaded: bool = False

    def __add__(self, other: Condition) -> Condition:
        return Condition(
            f"{self.name}; {other.name}",
            self.environment | other.environment,
            self.options + other.options,
        )

    def variables(self) -> dict[str, str]:
        merged = os.environ | self.environment
        return {name: value for name, value in merged.items() if value is not None}


def conditions() -> list[Condition]:
    """One by one; those that this machine can make: locales must be installed."""
    return [*_instructions(), *_orders(), *_locales(), LOADED]


def together() -> list[Condition]:
    """The same, in fewer runs: instructions, orders, zones, hash seeds and locales change at once.
    Everything runs with the fewest instructions; with other sets, what computes."""
    *some, baseline = _instructions()
    first, second = _orders()
    ascii_alone, *languages = _locales()
    for language in languages[:1]:
        first += language
    rest = [replace(second + each, tests=NUMERIC) for each in some or [Condition("", {})]]
    return [baseline + first, *rest, ascii_alone, *languages[1:], LOADED]


LOADED = Condition("two busy loops", {}, tests=TIMED, loaded=True)


def _instructions() -> list[Condition]:
    unset: dict[str, str | None] = dict.fromkeys(SWITCHES)
    return [
        Condition(f"instructions: {name}", unset | switches)
        for name, switches in instruction_sets().items()
        if name != "all"
    ]


def _orders() -> list[Condition]:
    orders = []
    for number, zone in enumerate(ZONES, 1):
        order = "reversed" if number == 1 else str(number)
        orders.append(
            Condition(
                f"{zone}, order {order}, hash seed {number}",
                {"TZ": zone, "PYTHONHASHSEED": str(number)},
                ("-p", "tests.elsewhere.order", "--order", order),
            )
        )
    return orders


def _locales() -> list[Condition]:
    """ASCII alone, and German (1,5 for 1.5) and Turkish (İ and ı), if they are there."""
    try:
        listed = subprocess.run(["locale", "-a"], capture_output=True, text=True).stdout.split()
    except FileNotFoundError:
        listed = []
    names = ("de_de.utf8", "tr_tr.utf8")
    there = [name for name in listed if name.lower().replace("-", "") in names]
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    return [
        Condition("locale C, no UTF-8", ascii_alone, tests=WRITTEN),
        *(Condition(f"locale {name}", {"LC_ALL": name}, tests=WRITTEN) for name in there),
    ]
