"""DeepSpeed's stages against plain torch, in a process of their own: DeepSpeed stays in one."""

from __future__ import annotations

import json
import subprocess
import sys

from .checks import Figures, Place, check, need

TOLERANCE = 1e-4


@check("DeepSpeed 1, 2, 3 are plain torch, and load what another saved", rank=3)
def zero(place: Place) -> tuple[str, Figures]:
    need("deepspeed")
    command = [sys.executable, "-m", "tests.gpu.zero_worker", str(place.small), place.model]
    done = subprocess.run(
        [*command, str(place.folder)], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-400:]
    off_by = json.loads(done.stdout.splitlines()[-1])
    for name, off in off_by.items():
        assert off < TOLERANCE, f"{name} is {off:.1e} off plain torch"
    return (
        f"three updates, weights at most {max(off_by.values()):.0e} off; saved by 1, on in 3",
        off_by,
    )
