"""Policy losses and k3 against plain-loop twins with gradients by hand, and worked examples."""

from __future__ import annotations

import math
import random

import pytest
import torch

from lldscope.losses.objectives import entropy_bonus, kl_k3, policy_loss

GARBAGE = [math.nan, math.inf, -math.inf, 1e30, 0.0]
Rows = list[list[float | None]]  # log-ratio of each token; None is feedback or padding


def tensors(rows: Rows, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """logp_new with gradient, logp_old, mask; garbage wherever a row has None."""
    rng = random.Random(seed)
    width = max(map(len, rows))
    old = torch.empty(len(rows), width, dtype=torch.float64)
    new = torch.empty_like(old)
    mask = torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        for t in range(width):
            value = row[t] if t < len(row) else None
            if value is None:
                old[i, t], new[i, t] = rng.choice(GARBAGE), rng.choice(GARBAGE)
            else:
                old[i, t], mask[i, t] = -5 * rng.random(), 1
                new[i, t] = old[i, t] + value
    return new.requires_grad_(), old, mask


def random_rows(rng: random.Random) -> Rows:
    """Ragged rows with runs of actions and feedback, empty rows and far-off ratios among them."""
    rows: Rows = []
    for _ in range(rng.randrange(1, 6)):
        scale = rng.choice([0.0, 0.1, 1.0, 8.0])
        row: list[float | None] = []
        for _ in range(rng.randrange(0, 4)):
            row += [rng.gauss(0, scale) for _ in range(rng.randrange(0, 4))]
            row += [None] * rng.randrange(0, 3)
        rows.append(row)
    rows[0] = rows[0] or [None]
    return rows


def token_term(
    r: float, a: float, low: float, high: float, dual: float | None
) -> tuple[float, float, bool]:
    """Loss of one token, its derivative with respect to ln π_θ, and whether a clip was active."""
    if a > 0 and r > 1 + high:
        return -(1 + high) * a, 0.0, True
    if a < 0 and r < 1 - low:
        return -(1 - low) * a, 0.0, True
    if a < 0 and dual is not None and r > dual:
        return -dual * a, 0.0, True
    return -r * a, -r * a, False


def twin(
    rows: Rows,
    advantages: list[float],
    objective: str,
    low: float,
    high: float,
    dual: float | None,
    aggregation: str,
    max_tokens: int | None,
) -> tuple[float, list[list[float]], list[list[bool]]]:
    lengths = [sum(x is not None for x in row) for row in rows]
    loss = 0.0
    slopes, clips = [], []
    for row, length, a in zip(rows, lengths, advantages, strict=True):
        slope, clip = [], []
        for x in row:
            if x is None:
                slope.append(0.0)
                clip.append(False)
                continue
            if objective == "gspo":
                x = sum(y for y in row if y is not None) / length
            # The caps: ratio 100 for GRPO, log-ratio 10 for GSPO.
            cap = math.exp(10) if objective == "gspo" else 100.0
            ceiling = cap if dual is None else min(cap, dual)
            value, derivative, active = token_term(math.exp(x), a, low, high, ceiling)
            share = {
                "token-mean": 1 / max(sum(lengths), 1),
                "sequence-mean": 1 / length / max(sum(n > 0 for n in lengths), 1),
                "dr-grpo": 1 / (len(rows) * (max_tokens or 1)),
            }[aggregation]
            loss += share * value
            slope.append(share * derivative)
            clip.append(active)
        slopes.append(slope)
        clips.append(clip)
    return loss, slopes, clips


@pytest.mark.parametrize("objective", ["grpo", "gspo"])
@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean", "dr-grpo"])
@pytest.mark.parametrize("dual", [None, 3.0])
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.1, 0.28)])
def test_twin(
    objective: str, aggregation: str, dual: float | None, low: float, high: float
) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        rows = random_rows(rng)
        advantages = [rng.choice([-1.3, -0.4, 0.0, 0.7, 2.0]) for _ in rows]
        new, old, mask = tensors(rows, seed)
        result = policy_loss(
            new,
            old,
            mask,
            torch.tensor(advantages, dtype=torch.float64),
            objective=objective,
            clip_low=low,
            clip_high=high,
            dual_clip=dual,
            aggregation=aggregation,
            max_tokens=7,
        )
        result.loss.backward()
        loss, slopes, clips = twin(rows, advantages, objective, low, high, dual, aggregation, 7)
        assert result.loss.item() == pytest.approx(loss, rel=1e-9, abs=1e-12)
        for i, row in enumerate(rows):
            assert new.grad[i, : len(row)].tolist() == pytest.approx(slopes[i], rel=1e-9, abs=1e-12)
            assert result.clipped[i, : len(row)].tolist() == clips[i]
            assert not new.grad[i, len(row) :].any()
            assert not result.clipped[i, len(row) :].any()


@pytest.mark.parametrize("objective", ["grpo", "gspo"])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_exploded_ratio_stays_finite_in_the_loss_and_visible_in_the_statistics(
    objective: str, advantage: float
) -> None:
    # ln r = 800: exp overflows even float64. Positive Â: clipped at 1.2. Negative: the cap.
    new, old, mask = tensors([[800.0]])
    result = policy_loss(new, old, mask, torch.tensor([advantage]), objective=objective)
    result.loss.backward()
    cap = 100.0 if objective == "grpo" else math.exp(10)
    assert result.loss.item() == pytest.approx(-1.2 if advantage > 0 else cap)
    assert new.grad.item() == 0.0
    assert math.isinf(result.ratio.item())
    assert result.clipped.item()


def test_advantages_per_token_and_no_gradient_but_logp_new() -> None:
    new, old, mask = tensors([[0.0, 0.0, None]])
    old.requires_grad_()
    advantages = torch.tensor([[1.0, -3.0, math.nan]], dtype=torch.float64, requires_grad=True)
    result = policy_loss(new, old, mask, advantages)
    result.loss.backward()
    assert new.grad.tolist() == [[-0.5, 1.5, 0.0]]
    assert old.grad is None
    assert advantages.grad is None
    assert not result.ratio.requires_grad


def test_k3_twin() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        rows = random_rows(rng)
        new, ref, mask = tensors(rows, seed)
        actual = kl_k3(new, ref, mask)
        actual.sum().backward()
        for i, row in enumerate(rows):
            for t in range(new.shape[1]):
                x = row[t] if t < len(row) else None
                if x is None:
                    assert (actual[i, t].item(), new.grad[i, t].item()) == (0.0, 0.0)
                    continue
                k3 = math.exp(-x) + x - 1  # r = −x
                slope = 0.0 if k3 > 10 else 1 - math.exp(-x)
                assert actual[i, t].item() == pytest.approx(min(k3, 10.0), abs=1e-12)
                assert new.grad[i, t].item() == pytest.approx(slope, abs=1e-12)


def test_k3_by_hand_and_far_off() -> None:
    # r = ln 2: 2 − ln 2 − 1 = 0.30685; r = 0: 0; r = ±800: the clamp, with gradient 0, not NaN.
    new, ref, mask = tensors([[-math.log(2), 0.0, -800.0, 800.0]])
    actual = kl_k3(new, ref, mask)
    actual.sum().backward()
    assert actual.tolist() == [pytest.approx([1 - math.log(2), 0.0, 10.0, 10.0])]
    assert new.grad.tolist() == [pytest.approx([-1.0, 0.0, 0.0, 0.0])]


def test_entropy_bonus_twin() -> None:
    for seed in range(20):
        rows = random_rows(random.Random(seed))
        entropy, _, mask = tensors(rows, seed)  # any number will do for an entropy here
        actual = entropy_bonus(entropy, mask)
        actual.backward()
        values = [
            entropy[i, t].item()
            for i, row in enumerate(rows)
            for t, x in enumerate(row)
            if x is not None
        ]
        n = max(len(values), 1)
        assert actual.item() == pytest.approx(sum(values) / n, abs=1e-12)
        assert torch.equal(entropy.grad, mask.double() / n)


def test_arguments_are_not_written_and_device_is_not_read() -> None:
    new, old, mask = tensors([[0.5, None, -0.5], [1.0]])
    advantages = torch.tensor([1.0, -1.0])
    everything = [new, old, mask, advantages]
    versions = [t._version for t in everything]
    on_meta = [t.detach().to("meta") for t in everything]
    for objective in ("grpo", "gspo"):
        for aggregation in ("token-mean", "sequence-mean", "dr-grpo"):
            options: dict = {"objective": objective, "aggregation": aggregation, "max_tokens": 9}
            policy_loss(*everything, dual_clip=3.0, **options)
            assert policy_loss(*on_meta, dual_clip=3.0, **options).loss.shape == ()
    kl_k3(new, old, mask)
    assert kl_k3(*on_meta[:3]).shape == (2, 3)
    assert [t._version for t in everything] == versions


def test_bad_shapes() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="action_mask"):
        policy_loss(x, x, x[:, :2], torch.zeros(2))
    with pytest.raises(ValueError, match="advantages"):
        policy_loss(x, x, x, torch.zeros(3))
    with pytest.raises(ValueError, match="logp_ref"):
        kl_k3(x, x[:1], x)
