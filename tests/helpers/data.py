"""Skips tests of real question-answering data where there is none."""

from __future__ import annotations

import pytest

from benchmarks.data import DATA

needs_data = pytest.mark.skipif(
    DATA is None, reason="the benchmarks' files are not on this machine; name them: LLDSCOPE_DATA"
)
