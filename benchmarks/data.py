"""Real question-answering data, where there is any.

The texts belong to other people and are not in this repository. A folder of them is found through
$LLDSCOPE_DATA, or beside the checkout by the MANIFEST.csv in it.
"""

from __future__ import annotations

import os
from pathlib import Path


def _find() -> Path | None:
    folder = os.environ.get("LLDSCOPE_DATA")
    if folder:
        return Path(folder)
    beside = Path(__file__).parents[2].glob("*/data/MANIFEST.csv")
    return next((manifest.parent for manifest in sorted(beside)), None)


DATA = _find()
