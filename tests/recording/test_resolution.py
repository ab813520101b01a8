"""Log-probabilities in bfloat16 and half precision: their resolution stands beside Δ."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lldscope
from lldscope.cli.views import show_state
from lldscope.monitor.health import check
from lldscope.recording.batch import Batch
from lldscope.recording.columns import record
from lldscope.recording.ratios import LEAST, rounding_error_sq

RANDOM = np.random.default_rng(7)


def draw(n: int) -> torch.Tensor:
    return torch.from_numpy(-RANDOM.gamma(1.5, 1.5, n))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_the_error_is_that_of_rounding(kind):
    """Against the errors that rounding did make, and the spacing that torch knows."""
    exact = draw(20_000)
    rounded = exact.to(kind)
    errors = rounding_error_sq(rounded.double().numpy())
    spacing = torch.nextafter(rounded, torch.tensor(-torch.inf, dtype=kind)) - rounded
    inside = np.log2(rounded.double().abs().numpy()) % 1 > 0  # a power of two has two spacings
    assert np.allclose(np.sqrt(12 * errors[inside]), spacing.double().abs().numpy()[inside])
    error = (exact - rounded.double()).square().mean().item()
    assert errors.mean() == pytest.approx(error, rel=0.05)
    with_others = np.append(rounded.double().numpy(), [np.nan, 0.0])
    assert rounding_error_sq(with_others)[[0, -1]].tolist() == [errors[0], 0.0]


def test_finer_numbers_and_too_few_are_left_alone():
    assert rounding_error_sq(draw(100).float().double().numpy()) is None
    assert rounding_error_sq(draw(LEAST - 1).bfloat16().double().numpy()) is None
    mixed = draw(100).bfloat16().double()
    mixed[3] = -1.2345678
    assert rounding_error_sq(mixed.numpy()) is None


@pytest.mark.parametrize("coarse", [True, False])
def test_the_resolution_stands_beside_delta(tmp_path, capsys, coarse):
    """Δ of the same policy twice, seen through bfloat16: its spread is the recorded error."""
    apart, right = [], [True, False] * 8
    with lldscope.Recorder(tmp_path / "run") as recorder:
        for step in range(40):
            exact = draw(16 * 50).view(16, 50)
            moved = exact + torch.from_numpy(1e-4 * RANDOM.standard_normal((16, 50)))
            old, post = (x.bfloat16() if coarse else x.float() for x in (exact, moved))
            change = (post.double() - old.double() - moved + exact).sum(1)
            apart.append(change[::2].mean().item())
            record(recorder, Batch(
                step=step, mask=np.ones((16, 50)), prompt_ids=[[1]] * 16,
                completion_ids=[[2] * 50] * 16, rewards=np.array(right, float), correct=right,
                group_ids=np.arange(16) // 4, old=old, post=post,
            ))
    run = lldscope.open_run(tmp_path / "run")
    rounding = run.signals()["delta_correct_rounding"]
    show_state(run, check(run))
    assert ("resolution" in capsys.readouterr().out) == coarse
    assert rounding.notna().tolist() == [coarse] * 40
    if coarse:
        # Two roundings of nearly the same number mostly go the same way: this is a bound.
        assert np.std(apart) < rounding.mean() < 0.1
