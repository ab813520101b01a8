"""The medians of healthy logs, which `lldscope diagnose` shows beside those of a run.

python -m study.healthy FOLDER

FOLDER holds logs as OWNER+REPOSITORY@COMMIT/PATH. A log counts that has ROWS rows, names that tell
its trainer, and no alarm; so do the runs of sample_runs/alarm_bank whose held-out score held.
Writes lldscope/report/healthy.csv.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.evaluation.bank import read_bank
from lldscope.importers.build import Import
from lldscope.importers.source import ImportRequest
from lldscope.monitor.health import check
from lldscope.report.ordinary import HEALTHY, SHOWN
from lldscope.report.trainers import trainer_of

from .counts import ALARM_BANK

ROWS = 20


def logs(folder: Path) -> Iterator[list[str]]:
    """Trainer, repository with commit, path and medians of each healthy log."""
    for file in sorted(f for f in folder.rglob("*") if f.is_file()):
        with tempfile.TemporaryDirectory() as place:
            try:
                task = Import([file], Path(place) / "run", ImportRequest(), None)
                with lldscope.open_run(task.build(lambda note: None).run) as run:
                    trainer, table = trainer_of(run.info).id, run.signals()
                    is_healthy = check(run).verdict == "healthy"
            except LldscopeError as problem:
                print(file, problem)
                continue
        if is_healthy and len(table) >= ROWS and trainer != "other":
            repository, _, path = file.relative_to(folder).as_posix().partition("/")
            yield [trainer, repository.replace("+", "/", 1), path, *medians(table)]


def medians(table: pd.DataFrame) -> list[str]:
    values = (table[name].astype(float).median() for name in SHOWN)
    return ["" if value != value else f"{value:.3g}" for value in values]


def main(folder: Path) -> None:
    rows = {tuple(row[3:]): row for row in logs(folder)}  # one that was committed twice counts once
    bank = [r for r in read_bank(ALARM_BANK) if r.label == "held"]
    ours = [["lldscope", "sample_runs/alarm_bank", r.name, *medians(r.signals())] for r in bank]
    with HEALTHY.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["trainer", "repository", "path", *SHOWN])
        out.writerows([*rows.values(), *ours])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
