"""The seams of TRL are in the installed release, by what `python -m tests.drift` looks for."""

from __future__ import annotations

import pytest

from tests.drift import __main__ as drift
from tests.drift.seams import SEAMS


def test_the_seams_of_trl_fit_what_is_installed():
    trl = pytest.importorskip("trl", reason="trl: not installed")
    from importlib.resources import files

    root = files(trl).parent
    for seam in SEAMS["trl"]:
        tree = drift.ast.parse((root / seam.file).read_text(encoding="utf-8"))
        assert drift.misfit(tree, seam) is None
