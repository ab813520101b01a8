"""vLLM in a process of its own: log-probabilities, syncs, sleep, the model runner that ran."""

from __future__ import annotations

from functools import cache

from .checks import SECONDS, Figures, Place, check, need, run_worker
from .made import make_model

MEAN_GAP = {"float32": 1e-3, "bfloat16": 0.05}
"""Nats per token between the engine's and the trainer's log-probabilities."""


@cache
def outcome_of(place: Place, tied: bool) -> tuple[Figures, AssertionError | None]:
    """What the worker measured on a model, or why not; one process for all checks, and one for each
    model: the card keeps what an engine held until its process ends. An engine that does not start
    is not started again for the next check."""
    model = place.model if tied else make_model(place.folder / "untied", place.small, tied=False)
    try:
        return run_worker("engine_worker", place, model, SECONDS[3] - 20), None
    except AssertionError as failure:
        return {}, failure


def measured(place: Place, tied: bool) -> Figures:
    """The figures of a model; AssertionError where there are none."""
    need("vllm")
    figures, failure = outcome_of(place, tied)
    if failure is not None:
        raise failure
    return figures


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
    place.need_cuda("a second model")  # on the CPU, in tests/trainer/test_vllm.py
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
