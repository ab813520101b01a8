"""`python -m benchmarks --help`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import __main__ as everything


def test_help_names_every_benchmark(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench", "--help"])
    with pytest.raises(SystemExit):
        everything.main()
    output = capsys.readouterr().out
    folder = Path(everything.__file__).parent
    commands = [p.stem for p in folder.glob("*.py") if "__main__" in p.read_text()]
    others = {"__main__", "importing", "logger_worker", "rival_worker"}
    for name in {*everything.BY_NAME, *commands} - others:
        assert re.search(rf"^  {name} +\S", output, re.M), name
