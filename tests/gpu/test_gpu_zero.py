"""DeepSpeed's stages against plain torch on the shipped policy, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.gpu.made import DEVICE

WORKER = Path(__file__).parents[1] / "trainer" / "optimizer_worker.py"
TOLERANCE = 1e-4


@pytest.mark.engine("deepspeed")
def test_every_stage_is_plain_torch_and_goes_on_in_it(tmp_path, tell):
    """Weights after three updates, and after two more in plain torch, as a share of what the
    updates moved."""
    common = "llds=token,llds_dead_band=1e-4"
    zero = [f"{common},optimizer=deepspeed,zero_stage={n}" for n in (1, 2, 3)]
    command = [sys.executable, WORKER, DEVICE.type, tmp_path, common, *zero]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-8000:]
    plain, *stages = (load_file(tmp_path / f"case-{n}-0.safetensors") for n in range(4))
    shift = (plain["weights_on"] - plain["weights"]).norm()
    for stage in stages:
        for when, expected in (("weights", "weights"), ("weights_elsewhere", "weights_on")):
            off = float((stage[when] - plain[expected]).norm() / shift)
            tell(f"{when} {off:.0e} off")
            assert off < TOLERANCE
