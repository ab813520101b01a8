"""The settings of runs, flat and as text, and the settings that differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core.secrets import redact

NOT_SET = "not recorded"


def flat(config: Any) -> dict[str, str]:
    """The settings of a configuration as text, without credentials; nested names have dots."""
    return {
        name: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False, default=str)
        for name, v in pairs(redact(config))
    }


def differing(configs: Sequence[Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    """The settings that are not the same in all flat configurations, each with its values."""
    names = dict.fromkeys(name for config in configs for name in config)
    rows = [(name, [config.get(name, NOT_SET) for config in configs]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def pairs(config: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a configuration with their values; nested names have dots."""
    if not isinstance(config, Mapping):
        return
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from pairs(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
