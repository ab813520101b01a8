"""What the tests of importing share: an import into the test's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lldscope.importers.build import Import, ImportSummary
from lldscope.importers.source import ImportRequest


@pytest.fixture
def run_import(tmp_path):
    def run(
        *paths: Path, to: str = "run", format_name: Any = None, **request: Any
    ) -> ImportSummary:
        task = Import(paths, tmp_path / to, ImportRequest(**request), format_name)
        return task.build(lambda n: None)

    return run
