"""What must be touched for a new signal: its entry in the registry, and its expression in SQL."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded_steps import record_steps

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


@pytest.fixture
def computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal's expression in the view of its grain."""
    folder = tmp_path / "sql"
    shutil.copytree(str(views.SQL), folder)
    view = folder / "step_conduct.sql"
    view.write_text(
        view.read_text().replace("SELECT\n", "SELECT\n    2 * avg(n_tokens) AS made_up,\n")
    )
    monkeypatch.setattr(views, "SQL", folder)


def test_registry_and_one_expression_are_all_that_a_signal_needs(computed, registered, tmp_path):
    path = tmp_path / "run"
    with lldscope.Recorder(path) as recorder:
        record_steps(recorder, range(5))
        recorder.step(step=5)
        recorder.scalars(step=[5], name=[NEW.name], value=[7.0])
    with lldscope.open_run(path) as run:
        signals = run.signals()
        values = run.sql("SELECT made_up FROM signals ORDER BY step")["made_up"]
    assert signals[NEW.name][:5].tolist() == (2 * signals["response_tokens"][:5]).tolist()
    assert signals[NEW.name][5] == 7.0, "a mean of another trainer's log stands in for it"
    assert values.tolist() == signals[NEW.name].tolist()


def test_a_signal_without_an_expression_is_an_error(registered, make_run):
    with pytest.raises(Exception, match="made_up"):
        lldscope.open_run(make_run())


def test_a_name_that_is_no_signal_is_an_error(monkeypatch):
    monkeypatch.setitem(schema._ROLES, "valid_serches", ("list", ""))
    with pytest.raises(KeyError, match="valid_serches"):
        signals_in("list")
