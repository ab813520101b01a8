"""Updates in parts: micro-batches and ranks must add up to one whole minibatch."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from keeper import ALONE, Rank, batch_of, one_step, together
from lldscope_trainer.algorithms import update
from lldscope_trainer.algorithms.update import Updater
from lldscope_trainer.config import TrainConfig
from lldscope_trainer.policy.logprobs import TokenScores
from lldscope_trainer.records import loss_columns
from lldscope_trainer.rollout.batch import RolloutBatch

from lldscope.core.errors import LldscopeError, UsageError
from lldscope.losses.llds import llds_loss
from lldscope.losses.objectives import kl_k3, policy_loss

VOCABULARY = 7


class Bigrams:
    """An optimizer over a table of next-token logits in double precision; it keeps gradients."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.table = torch.randn(
            VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64
        ).requires_grad_()
        self.lr = 0.0
        self.norm = 1.0
        self.calls: list[str] = []

    def forward(self, ids, action_mask, *, entropy=False):
        logits = self.table.log_softmax(-1)[ids[:, :-1]]
        logp = logits.gather(-1, ids[:, 1:, None])[..., 0]
        spread = -(logits.exp() * logits).sum(-1)
        first = torch.zeros(len(ids), 1, dtype=torch.float64)
        results = [torch.cat([first, x * action_mask[:, 1:]], dim=1) for x in (logp, spread)]
        self.calls.append(f"forward {len(ids)}")
        return TokenScores(results[0], results[1] if entropy else None, None)

    def backward(self, loss, *, last):
        self.calls.append("last" if last else "more")
        loss.backward()

    def step(self):
        self.calls.append("step")
        return self.norm, math.isfinite(self.norm)

    def full_weights(self):
        return nullcontext()


def made_up_batch(n: int = 10, seed: int = 0) -> RolloutBatch:
    generator = torch.Generator().manual_seed(seed)
    lengths = [6 + (5 * i) % 11 for i in range(n)]
    width = max(lengths)
    ids = torch.randint(VOCABULARY, (n, width), generator=generator)
    mask = torch.zeros(n, width, dtype=torch.int64)
    for row, length in enumerate(lengths):
        mask[row, 1:length] = (torch.rand(length - 1, generator=generator) < 0.7).long()
        mask[row, 2] = 1
    spread = torch.randn(2, n, width, generator=generator, dtype=torch.float64) * mask
    old = Bigrams().forward(ids, mask).logp.detach() + 0.3 * spread[0]
    return batch_of(
        ids, mask, lengths, torch.randn(n, generator=generator),
        old=old,
        inner=old.clone(),
        ref=old + 0.2 * spread[1],
        behaviour=old + 0.4 * spread[1].flip(0) * mask,
        answer_mask=(torch.rand(n, width, generator=generator) < 0.3).long() * mask,
    )


def share_of(batch: RolloutBatch, rank: int, size: int) -> RolloutBatch:
    """Every size-th row, in a batch of its own."""
    values = vars(batch).items()
    return RolloutBatch(**{k: v[rank::size] if hasattr(v, "__len__") else v for k, v in values})


def whole_loss(c: TrainConfig, batch: RolloutBatch, model: Bigrams) -> dict[str, torch.Tensor]:
    """The terms of the loss of all rows at once, and their sum."""
    scores = model.forward(batch.ids, batch.mask, entropy=True)
    weights = None
    if c.importance_sampling == "token_truncate":
        weights = (batch.old - batch.behaviour).exp().clamp(max=c.importance_cap) * batch.mask
    true = batch.advantages
    policy = policy_loss(
        scores.logp, batch.old, batch.mask, true.clamp(min=0) if c.positive_only else true,
        objective=c.objective, aggregation=c.aggregation,
        max_tokens=(c.max_turns + 1) * c.turn_tokens if c.aggregation == "dr-grpo" else None,
        weights=weights,
    ).loss
    llds = llds_loss(
        scores.logp, batch.old, batch.mask, true, gate=c.llds, coefficient=1.0,
        normalizer=c.llds_normalizer, answer_mask=batch.answer_mask, answer_weight=0.25,
    ).loss if c.llds != "off" else torch.zeros(())
    action = batch.mask.bool()
    kl = kl_k3(scores.logp, batch.ref, batch.mask)[action].mean()
    entropy = scores.entropy[action].mean()
    total = policy + c.llds_coefficient * llds + c.kl_coefficient * kl
    total = total - c.entropy_coefficient * entropy
    return {"total": total, "loss_policy": policy, "loss_llds": llds, "loss_kl": kl}


def configured(**settings) -> TrainConfig:
    arguments = {"updates": 1, "llds": "action", "kl_coefficient": 0.3, "entropy_coefficient": 0.05}
    return TrainConfig(**arguments | settings)


def on_ranks(config: TrainConfig, batch: RolloutBatch, size: int) -> tuple[list, list[Bigrams]]:
    """One step on as many ranks: the stats of each, and its model."""
    models = [Bigrams() for _ in range(size)]

    def one(rank: Rank) -> list:
        updater = Updater(config, models[rank.rank], rank)
        return one_step(updater, share_of(batch, rank.rank, size), answer_weight=0.25)

    return together(size, one), models


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("micro_tokens", [1, 20, 40, 10**6])
@pytest.mark.parametrize(
    "settings",
    [
        {"aggregation": "token-mean", "llds_normalizer": "preserved"},
        {"aggregation": "sequence-mean", "llds_normalizer": "all", "llds": "response"},
        {"aggregation": "dr-grpo", "llds": "token"},
        {"aggregation": "sequence-mean", "objective": "gspo", "llds": "token"},
        {"importance_sampling": "token_truncate", "importance_cap": 1.1},
        {"positive_only": True},
        {"optimizer": "deepspeed"},
    ],
    ids=lambda s: "-".join(map(str, s.values())),
)
def test_parts_add_up_to_the_whole(settings, micro_tokens, size):
    config = configured(micro_tokens=micro_tokens, **settings)
    batch = made_up_batch(12)
    model = Bigrams()
    expected = whole_loss(config, batch, model)
    expected["total"].backward()
    stats, models = on_ranks(config, batch, size)
    gradient = sum(m.table.grad for m in models)
    torch.testing.assert_close(gradient, model.table.grad, rtol=1e-9, atol=1e-12)
    tokens = [s[0].n_tokens for s in stats]
    assert sum(tokens) == int(batch.mask.sum())
    for name in ("loss_policy", "loss_llds", "loss_kl"):
        # As the analyzer adds ranks up: each one's row of `steps`, weighted by its tokens.
        rows = [loss_columns(s)[name] for s in stats]
        results = sum(v * n for v, n in zip(rows, tokens, strict=True)) / sum(tokens)
        assert results == pytest.approx(expected[name].item(), rel=1e-6, abs=1e-9)
    alone = one_step(Updater(config, Bigrams(), ALONE), batch, answer_weight=0.25)
    assert sum(s[0].n_clipped for s in stats) == alone[0].n_clipped > 0
    assert max(s[0].ratio_max for s in stats) == pytest.approx(alone[0].ratio_max)
    if config.optimizer == "deepspeed":
        passes = {sum(call.startswith("forward") for call in m.calls) for m in models}
        assert len(passes) == 1, "passes may wait for each other"


def test_the_largest_ratios_of_as_many_tokens_as_there_are(monkeypatch):
    """torch's quantile refuses more than 2²⁴ numbers, and a value interpolated towards an infinite
    one is NaN."""
    n = 2**24 + 100
    batch, loss = made_up_batch(12), torch.ones((), requires_grad=True)
    ratios = torch.arange(n, dtype=torch.float32)[None], torch.ones(1, n, dtype=torch.bool)
    ratios[0][0, -1] = torch.inf
    measures = update._Measures(torch.ones(3), *ratios, torch.tensor(0))
    monkeypatch.setattr(Updater, "_loss", lambda *arguments: (loss, measures))
    (stats,) = one_step(Updater(configured(), Bigrams(), ALONE), batch)
    assert (stats.ratio_max, stats.n_tokens) == (torch.inf, n)
    assert stats.ratio_p99 == pytest.approx(0.99 * n, rel=1e-6)


@pytest.mark.parametrize("micro_tokens", [30, 10**6])
def test_what_was_seen_is_filed_by_row(micro_tokens):
    """Inner log-probabilities, gates and penalties end up in the rows they belong to."""
    config = configured(micro_tokens=micro_tokens, updates=3)
    batch, model = made_up_batch(), Bigrams()
    one_step(Updater(config, model, ALONE), batch, answer_weight=0.25)
    scores = Bigrams().forward(batch.ids, batch.mask)
    torch.testing.assert_close(batch.inner, scores.logp.detach(), rtol=1e-12, atol=1e-12)
    llds = llds_loss(
        scores.logp, batch.old, batch.mask, batch.advantages,
        gate="action", coefficient=1.0, answer_mask=batch.answer_mask, answer_weight=0.25,
    )
    assert torch.equal(batch.gate_open, llds.gate_open)
    assert llds.gate_open.any()
    torch.testing.assert_close(batch.penalty.double(), llds.penalty.double(), rtol=1e-6, atol=1e-9)


def test_a_skipped_update_is_told_and_not_counted():
    model = Bigrams()
    updater = Updater(configured(updates=2), model, ALONE)
    model.norm = float("nan")
    skipped = one_step(updater, made_up_batch(), answer_weight=0.25)
    assert [s.skipped for s in skipped] == [True, True]
    assert updater.n_applied == 0
    model.norm = 3.0
    applied = one_step(updater, made_up_batch(), 1)
    assert [(s.skipped, s.grad_norm) for s in applied] == [(False, 3.0)] * 2
    assert updater.n_applied == 2


def test_the_learning_rate_warms_up():
    model = Bigrams()
    updater = Updater(configured(lr=0.8, warmup_steps=4), model, ALONE)
    rates = []
    for step in range(6):
        one_step(updater, made_up_batch(), step)
        rates.append(model.lr)
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_llds_can_be_switched_on_and_raised_between_steps():
    def trained(cures: dict[str, object], **settings) -> tuple[torch.Tensor, float | None]:
        model = Bigrams()
        updater = Updater(configured(**settings), model, ALONE)
        updater.cures = replace(updater.cures, **cures)
        loss = one_step(updater, made_up_batch())[0].loss_llds
        return model.table.grad, loss

    on = {"llds": "token", "llds_coefficient": 0.7}
    (off, nothing), (switched, loss) = trained({}, llds="off"), trained(on, llds="off")
    configured_so, expected = trained({}, **on)
    assert nothing is None
    assert torch.equal(switched, configured_so)
    assert not torch.equal(switched, off)
    assert loss == expected > 0


PLAIN = {"llds": "off", "kl_coefficient": 0, "entropy_coefficient": 0}


def with_constant_groups(n: int = 12) -> RolloutBatch:
    """Two of three rollouts without an advantage."""
    advantages = torch.tensor([0.0 if i % 3 else 1.0 - i for i in range(n)])
    return replace(made_up_batch(n), advantages=advantages)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("micro_tokens", [1, 10**6])
@pytest.mark.parametrize(
    "settings",
    [{}, {"aggregation": "sequence-mean"}, {"aggregation": "dr-grpo", "objective": "gspo"}],
    ids=str,
)
def test_constant_groups_give_no_gradient_and_need_no_pass(settings, micro_tokens, size):
    """The loss of all rows at once is the twin."""
    config = configured(**PLAIN | settings | {"micro_tokens": micro_tokens})
    batch, model = with_constant_groups(), Bigrams()
    expected = whole_loss(config, batch, model)["loss_policy"]
    expected.backward()
    stats, models = on_ranks(config.replace(skip_constant_groups=True), batch, size)
    gradient = sum(m.table.grad for m in models)
    torch.testing.assert_close(gradient, model.table.grad, rtol=1e-9, atol=1e-12)
    tokens = [s[0].n_tokens for s in stats]
    assert sum(tokens) == int(batch.mask.sum())
    loss = sum(loss_columns(s)["loss_policy"] * n for s, n in zip(stats, tokens, strict=True))
    assert loss / sum(tokens) == pytest.approx(expected.item(), rel=1e-6, abs=1e-9)
    rows = sum(int(c.split()[1]) for m in models for c in m.calls if c.startswith("forward"))
    # A rank without any advantage passes its shortest rollout, for a gradient of 0.
    assert rows == (4 if size < 3 else 4 + 2)
    assert all(m.table.grad is not None for m in models)


def test_a_guard_that_switches_llds_on_ends_the_skipping():
    batch = with_constant_groups()
    updater = Updater(configured(skip_constant_groups=True, **PLAIN), Bigrams(), ALONE)
    updater.cures = replace(updater.cures, llds="action")
    one_step(updater, batch, 0, answer_weight=0.25)
    assert batch.skipped is None
    with pytest.raises(UsageError, match="skip_constant_groups=true needs optimizer=torch"):
        configured(skip_constant_groups=True, optimizer="deepspeed")


def test_ranks_need_as_many_rollouts_each():
    """Ranks that make different numbers of forward passes would wait for each other for good."""

    class Uneven:
        rank, size = 0, 2

        def sum(self, tensor):
            other = tensor.clone()
            other[-2:] = torch.tensor([9, 81])  # rows and rows² of a rank with 9 rollouts
            return tensor + other

    updater = Updater(configured(), Bigrams(), Uneven())
    with pytest.raises(LldscopeError, match="same number of rollouts"):
        one_step(updater, made_up_batch(10), answer_weight=0.25)
