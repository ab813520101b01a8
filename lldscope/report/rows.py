"""Answers of SQL as plain values or dataclasses; None stands for what was not measured."""

from __future__ import annotations

from typing import Any, TypeVar

import pandas as pd

_T = TypeVar("_T")


def rows(kind: type[_T], frame: pd.DataFrame) -> list[_T]:
    """Rows as instances of a dataclass with the same fields."""
    return [kind(**row) for row in records(frame)]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dictionaries of plain values."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(k): v for k, v in row.items()} for row in plain.to_dict("records")]
