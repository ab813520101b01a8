"""After the training one line says what was seen and where to look."""

from __future__ import annotations

from lldscope.integrations.common.alarms import farewell


def test_one_line_says_what_was_seen(make_run, capsys):
    path = make_run()
    farewell(path)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("lldscope: ")
    assert f"steps in {path}" in line
    assert line.endswith(f"Look: lldscope dash {path}")


def test_what_cannot_be_read_is_logged_and_raises_nothing(tmp_path, caplog):
    farewell(tmp_path / "nothing")
    assert "nothing can be said of the run" in caplog.text
