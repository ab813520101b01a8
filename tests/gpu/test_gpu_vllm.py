"""vLLM, in a process for each model: the card keeps what an engine held until its process ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.gpu.made import CUDA, make_model

MEAN_GAP = {"float32": 1e-3, "bfloat16": 0.05}
"""Nats per token between the engine's and the trainer's log-probabilities."""


@pytest.mark.engine("vllm")
@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.cuda)])
def test_log_probabilities_sync_and_sleep(model, tmp_path, tell, tied):
    """With a head of its own, on the CPU, in tests/trainer/test_vllm.py."""
    if not tied:
        model = make_model(tmp_path / "untied", tied=False)
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.vllm_worker", model], capture_output=True, text=True,
        timeout=280, env=os.environ | {"VLLM_NO_USAGE_STATS": "1"},
    )
    tell(done.stdout.strip())  # of a worker that failed: what it measured before
    assert done.returncode == 0, done.stderr[-8000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    for when in ("start", "synced", "ten_syncs", *(["woken"] if CUDA else [])):
        assert figures[when] < MEAN_GAP[figures["dtype"]], when
    assert figures["stale"] > 3 * figures["synced"], "the gap does not show weights that are old"
    if CUDA:
        assert figures["asleep"] < 0.5 * figures["awake"], "bytes in use on the card"
