"""DeepSpeed's stages against plain torch, in a process of their own: DeepSpeed stays in one."""

from __future__ import annotations

from .checks import SECONDS, Figures, Place, check, need, run_worker

TOLERANCE = 1e-4


@check("DeepSpeed 1, 2, 3 are plain torch, and load what another saved", rank=3)
def zero(place: Place) -> tuple[str, Figures]:
    need("deepspeed")
    off_by = run_worker("zero_worker", place, place.model, SECONDS[3] - 20)
    for name, off in off_by.items():
        assert off < TOLERANCE, f"{name} is {off:.1e} off plain torch"
    return (
        f"three updates, weights at most {max(off_by.values()):.0e} off; saved by 1, on in 3",
        off_by,
    )
