"""What `check` and `diagnose` say: a sentence is the result of the test that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from rule_cases import simulate

import lldscope
from lldscope.cli.check import check as check_command
from lldscope.cli.diagnose import diagnose
from lldscope.monitor.health import check

FILE = Path(__file__).parents[1] / "cases" / "sentences.yaml"
CASES: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_sentences(case, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "1000")
    run = tmp_path / "run"
    with lldscope.Recorder(run, trainer="made up") as recorder:
        for row in simulate(case, case.get("seed", 0)).to_dict("records"):
            step = int(row.pop("step"))
            values = {name: x for name, x in row.items() if np.isfinite(x)}
            recorder.step(step=step)
            recorder.scalars(step=step, name=[*values], value=[*values.values()])
    with lldscope.open_run(run) as reader:
        headline = check(reader).headline
    commands = check_command, diagnose
    answers = [CliRunner().invoke(command, [str(run)]).output for command in commands]
    text = "\n".join([str(headline), *answers])
    for pattern in case.get("says", ()):
        assert re.search(pattern, text), (pattern, text)
    for pattern in case.get("never", ()):
        assert not re.search(pattern, text), (pattern, text)
    assert case.get("rule", headline.rule) == headline.rule, text
