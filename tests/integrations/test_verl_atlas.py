"""verl's metrics are what the atlas says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")


def test_verl_computes_what_the_atlas_says(tmp_path):
    from drift.atlas import moved, outcome

    assert moved("verl", outcome("verl", Path(sys.executable), tmp_path)) == []
