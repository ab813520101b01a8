"""After the training one line says what was seen and where to look; in a notebook a figure."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import lldscope
from lldscope.integrations.common.alarms import farewell


def test_one_line_says_what_was_seen(make_run, capsys):
    path = make_run()
    farewell(path)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("lldscope: ")
    assert f"steps in {path}" in line
    assert line.endswith(f"Look: lldscope dash {path}")


def test_a_short_run_is_called_too_short_once(tmp_path, capsys):
    path = tmp_path / "run"
    with lldscope.Recorder(path) as recorder:
        recorder.step(step=0)
    farewell(path)
    assert capsys.readouterr().out.lower().count("too few steps") == 1


@pytest.mark.parametrize(("shell", "n_figures"), [("ZMQInteractiveShell", 1), ("Other", 0)])
def test_in_a_notebook_the_run_draws_itself(make_run, monkeypatch, shell, n_figures):
    displayed = []
    ipython, parts = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = type(shell, (), {})
    parts.display = displayed.append
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", parts)
    farewell(make_run())
    assert len(displayed) == n_figures


def test_what_cannot_be_read_is_logged_and_raises_nothing(tmp_path, caplog):
    farewell(tmp_path / "nothing")
    assert "nothing can be said of the run" in caplog.text
