"""vLLM in a process of its own: log-probabilities, syncs, sleep, the model runner that ran."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

from .checks import Figures, Place, check, need
from .made import make_model

MEAN_GAP = {"float32": 1e-3, "bfloat16": 0.05}
"""Nats per token between the engine's and the trainer's log-probabilities."""


@cache
def measured(place: Place, tied: bool) -> dict[str, Any]:
    """What the worker measured on a model; one process for all checks, and one for each model: the
    card keeps what an engine held until its process ends."""
    need("vllm")
    model = place.model if tied else make_model(place.folder / "untied", place.small, tied=False)
    command = [sys.executable, "-m", "tests.gpu.engine_worker", str(place.small)]
    done = subprocess.run(
        [*command, str(place.folder), model], capture_output=True, text=True,
        check=False, timeout=600, env=os.environ | {"VLLM_NO_USAGE_STATS": "1"},
    )
    assert done.returncode == 0, done.stderr[-600:]
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def agreement(place: Place, tied: bool) -> tuple[str, Figures]:
    figures = measured(place, tied)
    allowed = MEAN_GAP[figures["dtype"]]
    for when in ("start", "synced", "ten_syncs"):
        assert figures[when] < allowed, (
            f"{figures[when]:.1e} nats a token ({when}), allowed {allowed:g}"
        )
    assert figures["stale"] > 3 * figures["synced"], "the gap does not show weights that are old"
    return (
        f"{figures['dtype']}: gap {figures['synced']:.0e} nats a token after a sync, "
        f"{figures['stale']:.0e} before it, {figures['ten_syncs']:.0e} after ten"
    ), figures


@check("vLLM: log-probabilities after syncs, tied embeddings", rank=3)
def tied(place: Place) -> tuple[str, Figures]:
    return agreement(place, True)


@check("vLLM: log-probabilities after syncs, a head of its own", rank=3)
def untied(place: Place) -> tuple[str, Figures]:
    return agreement(place, False)


@check("vLLM: the model runner, speed and sync", rank=3)
def runner(place: Place) -> tuple[str, Figures]:
    figures = measured(place, True)
    names = ("runner", "tokens_per_second", "sync")
    name, rate, seconds = (figures[name] for name in names)
    return f"{name}; {rate:.0f} tokens/s, sync {seconds:.3f} s", {n: figures[n] for n in names}


@check("vLLM: sleep gives memory back", rank=3)
def sleep(place: Place) -> tuple[str, Figures]:
    place.need_cuda("sleeping")
    figures = measured(place, True)
    awake, asleep = figures["awake"] / 2**30, figures["asleep"] / 2**30
    assert asleep < 0.5 * awake, f"{asleep:.1f} GiB asleep, {awake:.1f} awake"
    assert figures["woken"] < MEAN_GAP[figures["dtype"]], (
        f"{figures['woken']:.1e} nats off after waking"
    )
    return f"{awake:.1f} GiB awake, {asleep:.1f} asleep", {"awake": awake, "asleep": asleep}
