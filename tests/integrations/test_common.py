"""What adapters share: the wait for an import, the action on an alarm, the line at the end."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest
from scripted_monitor import critical_at_the_second_look

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.integrations.common import alarms
from lldscope.integrations.common.hooks import after_import


def test_what_waits_for_an_import_happens_after_it_once(tmp_path, monkeypatch):
    (tmp_path / "comes_late.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sightings, hooks = [], list(sys.meta_path)
    after_import("comes_late", lambda: sightings.append(sys.modules["comes_late"].value))
    importlib.import_module("json")
    assert sightings == []
    importlib.import_module("comes_late")
    assert sightings == [3]
    assert sys.meta_path == hooks, "the hook removes itself"
    after_import("comes_late", lambda: sightings.append(4))
    assert sightings == [3, 4]
    del sys.modules["comes_late"]


def test_an_alarm_saves_once_and_stops_if_it_shall(tmp_path, monkeypatch):
    monkeypatch.setattr(alarms, "Monitor", critical_at_the_second_look)
    for name, stops in (("save", False), ("stop", True)):
        action = alarms.AlarmAction(name, alarms.DEFAULT_RULES, 5.0)
        with lldscope.Recorder(tmp_path / name) as recorder:
            action.begin(recorder)
            flags = []
            for step in range(4):
                control = SimpleNamespace(should_save=False, should_training_stop=False)
                action.act(control, step)
                flags.append((control.should_save, control.should_training_stop))
            action.end()
        assert flags == [(False, False), (True, stops), (False, False), (False, False)]
        assert action.stopped == ("lld-decay fired at step 1" if stops else None)
        (event,) = lldscope.open_run(tmp_path / name).events()
        assert (event["kind"], event["rule"], event["step"]) == (f"guard_{name}", "lld-decay", 1)


def test_an_alarm_needs_duckdb(monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(LldscopeError, match="on_alarm reads the run, with the package duckdb"):
        alarms.AlarmAction("stop", alarms.DEFAULT_RULES, 5.0)


def test_one_line_says_what_was_seen(make_run, capsys):
    path = make_run()
    alarms.farewell(path)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("lldscope: ")
    assert f"steps in {path}" in line
    assert line.endswith(f"Look: lldscope dash {path}")


def test_what_cannot_be_read_is_logged_and_raises_nothing(tmp_path, caplog):
    alarms.farewell(tmp_path / "nothing")
    assert "nothing can be said of the run" in caplog.text
