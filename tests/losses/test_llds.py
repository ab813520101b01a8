"""LLDS against a plain-loop twin, hand-computed examples, and the facts easy to get wrong.

In the examples a row is spelled `a` action token, `A` action token of the answer span,
`.` feedback or padding, and drops are given as ln π_old − ln π_θ.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lldscope.losses.llds import LLDS, action_ids, adaptive_answer_weight, llds_loss

GARBAGE = [math.nan, math.inf, -math.inf, 1e30, 0.0]


@dataclass
class Case:
    """Ragged rows padded to one width; logp_old is a grid so that sums and ties are exact."""

    new: torch.Tensor
    old: torch.Tensor
    mask: torch.Tensor
    answer: torch.Tensor
    advantages: torch.Tensor

    def loss(self, **settings: object) -> LLDS:
        arguments: dict = {"coefficient": 1.0, "answer_mask": self.answer} | settings
        return llds_loss(self.new, self.old, self.mask, self.advantages, **arguments)


def batch(rows: list[str], drops: list[list[float]], advantages: list, seed: int = 0) -> Case:
    rng = random.Random(seed)
    width = max(map(len, rows))
    rows = [row.ljust(width, ".") for row in rows]
    old = torch.empty(len(rows), width, dtype=torch.float64)
    new = torch.empty_like(old)
    for i, row in enumerate(rows):
        for t, kind in enumerate(row):
            if kind == ".":
                old[i, t], new[i, t] = rng.choice(GARBAGE), rng.choice(GARBAGE)
            else:
                old[i, t] = -rng.randrange(1, 40) / 4
                new[i, t] = old[i, t] - drops[i][t]
    return Case(
        new.requires_grad_(),
        old,
        torch.tensor([[kind in "aA" for kind in row] for row in rows]).long(),
        torch.tensor([[kind == "A" for kind in row] for row in rows]).long(),
        torch.tensor(advantages, dtype=torch.float64),
    )


def twin(
    rows: list[str],
    drops: list[list[float]],
    advantages: list[float],
    gate: str,
    coefficient: float,
    answer_weight: float,
    dead_band: float,
    normalizer: str,
) -> tuple[float, list[list[float]], list[list[bool]]]:
    """Loss, gradient by the hand formula −λw/N, and open gates; token by token, no tensors."""
    n_all = sum(kind != "." for row in rows for kind in row)
    n_preserved = 0
    total = 0.0
    slope = [[0.0] * len(row) for row in rows]
    is_open = [[False] * len(row) for row in rows]
    for i, row in enumerate(rows):
        if advantages[i] < 0:
            continue
        spans = [[]]  # actions as lists of positions
        for t, kind in enumerate(row):
            if kind == ".":
                spans.append([])
            else:
                spans[-1].append(t)
                n_preserved += 1
        if gate in ("token", "ungated"):
            spans = [[t] for span in spans for t in span]
        if gate == "response":
            spans = [[t for span in spans for t in span]]
        for span in spans:
            if gate != "ungated" and not sum(drops[i][t] for t in span) > dead_band:
                continue
            for t in span:
                is_open[i][t] = True
                if drops[i][t] > 0 or gate == "ungated":
                    weight = answer_weight if row[t] == "A" else 1.0
                    total += weight * drops[i][t]
                    slope[i][t] = -coefficient * weight
    n = max(n_preserved if normalizer == "preserved" else n_all, 1)
    return coefficient * total / n, [[s / n for s in row] for row in slope], is_open


row_text = st.lists(
    st.sampled_from(["a", "aa", "aaaa", "AA", "aA", ".", "..", ""]), max_size=7
).map("".join)
quarter = st.integers(-6, 6).map(lambda k: k / 4)


@given(
    data=st.data(),
    rows=st.lists(row_text, min_size=1, max_size=6),
    gate=st.sampled_from(["token", "response", "action", "ungated"]),
    coefficient=st.sampled_from([0.0, 0.2, 3.0]),
    answer_weight=st.sampled_from([0.0, 0.25, 1.0]),
    dead_band=st.sampled_from([0.0, 0.5]),
    normalizer=st.sampled_from(["preserved", "all"]),
)
@settings(max_examples=100)
def test_twin(data, rows, gate, coefficient, answer_weight, dead_band, normalizer) -> None:
    """The loss, its gradient and its statistics are the twin's."""
    drops = [[data.draw(quarter) for _ in row] for row in rows]
    advantages = [data.draw(st.sampled_from([-1.0, -0.25, 0.0, 1.5])) for _ in rows]
    b = batch(rows, drops, advantages)
    out = b.loss(gate=gate, coefficient=coefficient, answer_weight=answer_weight,
                 dead_band=dead_band, normalizer=normalizer)
    out.loss.backward()
    loss, slope, is_open = twin(
        rows, drops, advantages, gate, coefficient, answer_weight, dead_band, normalizer
    )
    assert out.loss.item() == pytest.approx(loss, abs=1e-12)
    assert b.new.grad is not None
    for i, row in enumerate(rows):
        assert b.new.grad[i, : len(row)].tolist() == pytest.approx(slope[i], abs=1e-12)
        assert out.gate_open[i, : len(row)].tolist() == is_open[i]
        assert not b.new.grad[i, len(row) :].any()
        assert not out.gate_open[i, len(row) :].any()
    copies = [(row, d) for row, d, a in zip(rows, drops, advantages, strict=True) if a >= 0]
    assert int(out.n_preserved_tokens) == sum(len(row) - row.count(".") for row, _ in copies)
    everything = sum(len(row) - row.count(".") for row in rows)
    assert int(out.count) == (out.n_preserved_tokens if normalizer == "preserved" else everything)


@pytest.mark.parametrize(
    ("gate", "loss", "is_open"),
    [
        # drops 1, −2 | 3. Token: tokens 0 and 2 open, (1 + 3)/3.
        ("token", 4 / 3, [True, False, False, True]),
        # Response: 1 − 2 + 3 = 2 > 0 opens all: (1 + 3)/3; the riser adds 0.
        ("response", 4 / 3, [True, True, False, True]),
        # Action: 1 − 2 = −1 stays shut, 3 opens: 3/3.
        ("action", 1.0, [False, False, False, True]),
        # Ungated: (1 − 2 + 3)/3, the riser pulling back what it gained.
        ("ungated", 2 / 3, [True, True, False, True]),
    ],
)
def test_three_tokens_two_actions(gate: str, loss: float, is_open: list[bool]) -> None:
    b = batch(["aa.a"], [[1, -2, 0, 3]], [1.0])
    result = b.loss(gate=gate, coefficient=0.2)
    assert result.unweighted.item() == pytest.approx(loss)
    assert result.loss.item() == pytest.approx(0.2 * loss)
    assert result.gate_open.tolist() == [is_open]


# ---- the four facts easy to get wrong -----------------------------------------------------------


@pytest.mark.parametrize("gate", ["token", "response", "action"])
def test_gate_is_strict_and_carries_no_gradient(gate: str) -> None:
    # A sum (or drop) of exactly 0.5 does not exceed a dead band of 0.5; 0.5 + 1/64 does.
    shut = batch(["a"], [[0.5]], [1.0]).loss(gate=gate, dead_band=0.5)
    assert (shut.loss.item(), shut.gate_open.item()) == (0.0, False)
    above = batch(["a"], [[0.515625]], [1.0]).loss(gate=gate, dead_band=0.5)
    assert above.loss.item() == 0.515625  # the whole drop, not the part beyond the band
    # drops 2, −1: sum 1. A gate with a gradient would give the riser (token 1) one; it has none.
    b = batch(["aa"], [[2, -1]], [1.0])
    result = b.loss(gate=gate)
    result.loss.backward()
    assert b.new.grad.tolist() == [[-0.5, 0.0]]
    assert not any(t.requires_grad for name, t in vars(result).items() if name != "loss")


# ---- preserving set, garbage, shapes -------------------------------------------------------------


@pytest.mark.parametrize("normalizer", ["preserved", "all"])
@pytest.mark.parametrize("rows", [["aa", "a."], ["..", ".."], [""]])
def test_nothing_preserved_is_zero_and_differentiable(rows: list[str], normalizer: str) -> None:
    b = batch(rows, [[1.0] * 2] * len(rows), [-1.0] * len(rows))
    result = b.loss(gate="action", normalizer=normalizer)
    result.loss.backward()
    assert result.loss.item() == 0.0
    assert not b.new.grad.any()


def test_nan_at_an_action_token_is_not_hidden() -> None:
    b = batch(["aa"], [[math.nan, 1.0]], [1.0])
    assert math.isnan(b.loss(gate="action").loss.item())


def test_half_precision_is_summed_in_float32() -> None:
    # 300 drops of 1: bfloat16 counts no further than 256.
    old, new = torch.zeros(1, 300).bfloat16(), torch.full((1, 300), -1.0).bfloat16()
    result = llds_loss(new, old, torch.ones(1, 300), torch.ones(1), gate="action", coefficient=1.0)
    assert (result.loss.dtype, result.loss.item()) == (torch.float32, 1.0)


def test_arguments_are_not_written_and_device_is_not_read() -> None:
    b = batch(["aA.a"], [[1, 2, 0, -1]], [1.0])
    tensors = [b.new, b.old, b.mask, b.answer, b.advantages]
    versions = [t._version for t in tensors]
    b.loss(gate="action", answer_weight=0.5)
    assert [t._version for t in tensors] == versions
    new, old, mask, answer, advantages = (t.detach().to("meta") for t in tensors)
    for gate in ("token", "response", "action", "ungated"):  # on meta, a read back to Python raises
        out = llds_loss(new, old, mask, advantages, gate=gate, coefficient=1.0, answer_mask=answer)
        assert out.loss.shape == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gate": "chunk"}, "gate must be one of 'token', 'response', .*'ungated'; got 'chunk'"),
        ({"normalizer": "none"}, "normalizer must be one of 'preserved', 'all'"),
        ({"coefficient": -0.1}, "coefficient must be a finite number >= 0"),
        ({"coefficient": math.nan}, "coefficient"),
        ({"answer_weight": 1.5}, r"answer_weight must be in \[0, 1\]"),
        ({"answer_weight": 0.5, "answer_mask": None}, "needs an answer_mask"),
        ({"dead_band": -1.0}, "dead_band must be a finite number >= 0"),
        ({"answer_mask": torch.ones(1, 3)}, r"answer_mask must have the shape .* \(1, 2\)"),
    ],
)
def test_bad_arguments(change: dict, message: str) -> None:
    b = batch(["aa"], [[1, 1]], [1.0])
    with pytest.raises(ValueError, match=message):
        b.loss(**{"gate": "action", **change})


def test_bad_shapes() -> None:
    x = torch.zeros(2, 3)
    for args in [
        (x, x[:1], x, x[:, 0]),
        (x, x, x[:, :2], x[:, 0]),
        (x, x, x, x[0]),
        (x[0], x[0], x[0], x[0]),
    ]:
        with pytest.raises(ValueError, match=r"\(B, T\)"):
            llds_loss(*args, gate="action", coefficient=1.0)


# ---- action_ids and the answer weight ------------------------------------------------------------


@given(rows=st.lists(row_text, min_size=1, max_size=5))
def test_action_ids_twin(rows: list[str]) -> None:
    width = max(map(len, rows))
    rows = [row.ljust(width, ".") for row in rows]
    expected = []
    for row in rows:
        number, previous, ids = -1, ".", []
        for kind in row:
            if kind != "." and previous == ".":
                number += 1
            ids.append(-1 if kind == "." else number)
            previous = kind
        expected.append(ids)
    mask = torch.tensor([[kind != "." for kind in row] for row in rows])
    assert action_ids(mask).tolist() == expected
    assert action_ids(mask.double()).tolist() == expected


@pytest.mark.parametrize(
    ("searches", "paper", "reference"),
    [(0.0, 0.0, 0.0), (0.5, 0.25, 0.0), (1.0, 0.5, 0.0), (1.5, 0.75, 0.5), (2, 1, 1), (4, 1, 1)],
)
def test_adaptive_answer_weight(searches: float, paper: float, reference: float) -> None:
    assert adaptive_answer_weight(searches) == paper
    assert adaptive_answer_weight(searches, rule="reference") == reference
