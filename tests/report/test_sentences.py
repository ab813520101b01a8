"""What `check` and `diagnose` say: a sentence is the result of the test that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rule_cases import simulate

import lldscope
from lldscope.cli.diagnose import _show
from lldscope.cli.views import show_state
from lldscope.report import post_mortem
from lldscope.report.brief import brief

FILE = Path(__file__).parents[1] / "cases" / "sentences.yaml"
CASES: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_sentences(case, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1000")
    with lldscope.Recorder(tmp_path / "run", trainer="made up") as recorder:
        for row in simulate(case, case.get("seed", 0)).to_dict("records"):
            step = int(row.pop("step"))
            values = {name: x for name, x in row.items() if np.isfinite(x)}
            recorder.step(step=step)
            recorder.scalars(step=step, name=[*values], value=[*values.values()])
    with lldscope.open_run(tmp_path / "run") as run:
        facts = post_mortem(run)
        show_state(run, facts.state)
        _show(brief(run, facts))
    headline = facts.state.headline
    text = f"{headline}\n{capsys.readouterr().out}"
    for pattern in case.get("says", ()):
        assert re.search(pattern, text), (pattern, text)
    for pattern in case.get("never", ()):
        assert not re.search(pattern, text), (pattern, text)
    assert case.get("rule", headline.rule) == headline.rule, text
