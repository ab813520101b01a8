"""What must be touched for a new signal: its entry in the registry, and its expression in SQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lldscope
from lldscope.core import schema
from lldscope.core.schema import SIGNALS, Column, signals_in
from lldscope.query import views

NEW = Column("made_up", "float", "token", "Twice the action tokens per rollout.")


def register(columns: tuple[Column, ...]) -> None:
    """Edit the registry in place, as an edit of core/schema.py would."""
    object.__setattr__(SIGNALS, "columns", columns)
    views.view_sql.cache_clear()


@pytest.fixture
def registered() -> Iterator[None]:
    columns = SIGNALS.columns
    register((*columns, NEW))
    yield
    register(columns)


def test_a_signal_without_an_expression_is_an_error(registered, make_run):
    with pytest.raises(Exception, match="made_up"):
        lldscope.open_run(make_run())


def test_a_name_that_is_no_signal_is_an_error(monkeypatch):
    monkeypatch.setitem(schema._ROLES, "valid_serches", ("list", ""))
    with pytest.raises(KeyError, match="valid_serches"):
        signals_in("list")
