"""The hint at a setting's name that is not known: what other trainers call this trainer's settings
is in `lldscope.core.trainers`."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from lldscope.core.trainers import ours


def suggest(key: str, names: Collection[str]) -> str | None:
    """The setting among `names` that someone who wrote `key` may have meant."""
    last = key.rpartition(".")[2].lower().strip("-+").replace("-", "_")
    if last in names:
        return last
    if (setting := ours(names).get(last)) in names:
        return setting
    return next(iter(difflib.get_close_matches(key, names, n=1)), None)
