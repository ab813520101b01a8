"""TRL's metrics are what the atlas says: an experiment on two ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")
pytestmark = pytest.mark.slow


def test_trl_logs_what_the_atlas_says(tmp_path):
    from tests.drift.atlas import moved, outcome

    assert moved("trl", outcome("trl", Path(sys.executable), tmp_path)) == []
