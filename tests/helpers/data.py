"""Real question-answering data for tests and measurements, where there is any.

The texts belong to other people and are not in this repository. A folder of them is found through
$LLDSCOPE_DATA, or beside the checkout by the MANIFEST.csv in it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def _find() -> Path | None:
    folder = os.environ.get("LLDSCOPE_DATA")
    if folder:
        return Path(folder)
    beside = Path(__file__).parents[3].glob("*/data/MANIFEST.csv")
    return next((manifest.parent for manifest in sorted(beside)), None)


DATA = _find()

needs_data = pytest.mark.skipif(
    DATA is None, reason="the benchmarks' files are not on this machine; name them: LLDSCOPE_DATA"
)
