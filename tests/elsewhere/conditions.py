"""Which tests are repeated elsewhere, and what elsewhere is."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from .instruction_sets import cleared, instruction_sets

DECISIVE = (
    "tests/trainer/test_retrieval_index.py",
    "tests/trainer/test_environment.py",
    "tests/trainer/test_reward.py",
    "tests/trainer/test_rollout.py",
    "tests/losses",
    "tests/signals",
    "tests/query/test_signals.py",
    "tests/alarms/test_rules.py",
    "tests/alarms/test_changepoints.py",
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
    "tests/dashboard/test_first_answer.py",
    "tests/dashboard/test_dashboard.py::test_the_dying_run_shows_its_phases_and_alarms",
    "tests/dashboard/test_dashboard.py::test_increments_give_the_figure_that_would_be_drawn_anew",
    "tests/dashboard/test_dashboard.py::test_the_run_page_says_alarm_meaning_and_advice",
    "tests/dashboard/test_dashboard.py::test_the_list_is_sorted_filtered_and_grouped_as_the_address_says",
)
"""What decides something or writes it down: searches, losses, signals, detectors, phases, alarms,
verdicts of recorded runs, the recorder, imports, reports, the command line, the dashboard's words
and figures. No test of these trains, takes more than a few seconds or needs a browser."""


ZONES = ("Asia/Kathmandu", "America/St_Johns")
"""Neither is whole hours from UTC, and one has summer time."""


@dataclass(frozen=True)
class Condition:
    """`environment` in full, options for pytest, and whether two busy loops run beside it."""

    name: str
    environment: dict[str, str]
    options: tuple[str, ...] = ()
    loaded: bool = False


def conditions() -> list[Condition]:
    """Those that this machine can make: locales must be installed."""
    found = [
        Condition(f"instructions: {name}", cleared() | switches)
        for name, switches in instruction_sets().items()
        if name != "all"
    ]
    settings = {f"locale {name}": {"LC_ALL": name} for name in _locales()}
    settings["locale C, no UTF-8"] = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    found += [Condition(name, os.environ | changes) for name, changes in settings.items()]
    for number, zone in enumerate(ZONES, 1):
        order = "reversed" if number == 1 else str(number)
        found.append(
            Condition(
                f"{zone}, order {order}, hash seed {number}",
                os.environ | {"TZ": zone, "PYTHONHASHSEED": str(number)},
                ("-p", "tests.elsewhere.order", "--order", order),
            )
        )
    found.append(Condition("two busy loops", dict(os.environ), loaded=True))
    return found


def _locales() -> list[str]:
    """German (1,5 for 1.5) and Turkish (İ and ı) ones, if there are any."""
    try:
        listed = subprocess.run(["locale", "-a"], capture_output=True, text=True).stdout.split()
    except FileNotFoundError:
        return []
    return [
        name for name in listed if name.lower().replace("-", "") in ("de_de.utf8", "tr_tr.utf8")
    ]
