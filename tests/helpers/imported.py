"""What is in a run that an import has made."""

from __future__ import annotations

from typing import Any

import lldscope
from lldscope.importers.build import ImportSummary


def signals(outcome: ImportSummary) -> dict[int, dict[str, Any]]:
    """By step."""
    with lldscope.open_run(outcome.run) as run:
        assert not run.damaged
        return {row["step"]: row for row in run.signals().to_dict("records")}


def query(outcome: ImportSummary, sql: str) -> list[tuple]:
    with lldscope.open_run(outcome.run) as run:
        return list(run.sql(sql).itertuples(index=False, name=None))
