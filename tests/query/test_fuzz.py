"""Whatever lies in a run directory: no face crashes, and no number is wrong without a word."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import fuzz
import pytest
from recorded_steps import record_steps

import lldscope
from lldscope.recording import writer

SEED = 20251204
EACH = 2  # times each kind of damage is done


def record(path: Path, seed: int) -> Path:
    """Two attempts of two ranks, in several parts, with events."""
    for start in (0, 12):
        first = lldscope.Recorder(path, resume=start > 0, world_size=2)
        second = lldscope.Recorder(path, rank=1, resume=True, attempt=first.attempt)
        with first, second:
            for step in range(start, start + 16):
                record_steps(first, range(step, step + 1), seed=seed, groups=2)
                record_steps(second, range(step, step + 1), seed=seed + 100, groups=2)
                if step % 6 == 0:
                    first.event("lr change", step=step, lr=0.1)
                    first.flush()
    return path


@pytest.fixture(scope="session")
def unharmed(tmp_path_factory):
    root = tmp_path_factory.mktemp("unharmed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "CLOSE_MERGE_BYTES", -1)  # keep the parts apart
        record(root / "runs" / "run", 1)
        record(root / "other", 2)
    with lldscope.open_run(root / "runs" / "run") as run:
        return root, fuzz.answers(run)


@pytest.mark.parametrize("blow", fuzz.BLOWS, ids=lambda b: b.__name__)
@pytest.mark.slow
def test_damage_breaks_nothing_and_is_said(unharmed, tmp_path, blow, monkeypatch):
    root, truth = unharmed
    monkeypatch.setattr(fuzz, "BLOWS", [blow])
    for number in range(EACH):
        harmed = tmp_path / str(number)
        shutil.copytree(root, harmed)
        fuzz.strike(
            harmed / "runs" / "run", random.Random(f"{SEED} {blow.__name__} {number}"), truth
        )


def test_the_fuzzer_knows_wrong_numbers_when_it_sees_them(unharmed, tmp_path, monkeypatch):
    """If readers named no damage, the fuzzer would say so."""
    root, truth = unharmed
    shutil.copytree(root, tmp_path / "x")
    run = tmp_path / "x" / "runs" / "run"
    next((run / "steps").glob("*.parquet")).unlink()
    monkeypatch.setattr(lldscope.Run, "damaged", {})
    with pytest.raises(AssertionError, match="without a word"):
        fuzz.ask(run, truth)
