"""The variants of an update, each with one change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from lldscope.losses.objectives import kl_k3
from lldscope.recording.rescore import mixed_groups

from ..config import TrainConfig
from ..guard import Cures
from ..policy.logprobs import action_scores, by_tokens
from ..rollout.batch import RolloutBatch
from ..train import Sample, Trainer
from .answer import AS_IT_WAS, HALF_RATE, LLDS, MOMENTUM, NO_LLDS, POSITIVE

KL = 0.05
"""KL coefficient for the variant with KL, if the run has none."""


@dataclass(frozen=True)
class Variant:
    """One change. `without` marks responses (B, 1) or tokens (B, T) that give no policy gradient;
    denominators stay. `cures` and `settings` replace those of the run; `once` makes only one
    update."""

    name: str
    without: Callable[[Sample], Tensor] | None = None
    cures: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False


def variants(config: TrainConfig, cures: Cures) -> list[Variant]:
    """The variants for a run with these settings; the first changes nothing."""
    kl = 0.0 if config.kl_coefficient else KL
    changes = [
        Variant(AS_IT_WAS),
        Variant(POSITIVE, _negative),
        Variant("only negative advantages", _positive),
        Variant(MOMENTUM, _every, cures={"llds": "off"},
                settings={"kl_coefficient": 0.0, "entropy_coefficient": 0.0}),
        Variant("without unlikely negatives", _unlikely_negative),
        Variant("without shared prefixes", _shared_prefix),
        Variant(LLDS, cures={"llds": "action"}) if cures.llds == "off"
        else Variant(NO_LLDS, cures={"llds": "off"}),
        Variant(HALF_RATE, cures={"lr_share": cures.lr_share / 2}),
        Variant(f"KL {kl:g}" if kl else "without KL", settings={"kl_coefficient": kl}),
    ]
    if config.updates > 1:
        changes.append(Variant(f"one update instead of {config.updates}", once=True))
    return changes


def update(trainer: Trainer, sample: Sample, variant: Variant) -> RolloutBatch:
    """Make the sample's updates with the change, from restored weights, and return a batch with
    their measurements. The sample is unchanged."""
    updater, config = trainer.updater, trainer.config
    old, batch, without = sample.batch.old, sample.batch, variant.without
    settings = config.replace(**variant.settings)
    batch = replace(
        batch, inner=old.clone(), post=old.clone(),
        weights=None if without is None else (~without(sample)).float().expand_as(old),
        ref=batch.ref if settings.kl_coefficient else None, gate_open=None, penalty=None,
    )
    minibatches = [list(chain(*sample.minibatches))] if variant.once else sample.minibatches
    updater.cures = replace(updater.cures, **variant.cures)
    updater.config = settings
    try:
        trainer.update(replace(sample, batch=batch, minibatches=minibatches))
    finally:
        updater.config = config
    return batch


def _every(sample: Sample) -> Tensor:
    return torch.ones_like(sample.batch.advantages[:, None], dtype=torch.bool)


def _negative(sample: Sample) -> Tensor:
    return sample.batch.advantages[:, None] < 0


def _positive(sample: Sample) -> Tensor:
    return sample.batch.advantages[:, None] > 0


def _unlikely_negative(sample: Sample) -> Tensor:
    batch, negative = sample.batch, _negative(sample)[:, 0]
    mean = (batch.old * batch.mask).sum(1) / batch.mask.sum(1).clamp(min=1)  # nats a token
    unlikely = mean < mean[negative].quantile(0.5) if negative.any() else negative
    return (negative & unlikely)[:, None]


def _shared_prefix(sample: Sample) -> Tensor:
    """Tokens of an incorrect response that it shares, from the start, with a correct response of
    its group."""
    batch, groups = sample.batch, torch.tensor(sample.draw.groups)
    shared = torch.zeros_like(batch.mask, dtype=torch.bool)
    for row in correct_rows(sample):
        same = (batch.ids == batch.ids[row]).cummin(1).values  # (B, T)
        mates = (groups == groups[row]).to(same.device)
        shared |= same & mates[:, None]
    return shared & _negative(sample)


def correct_rows(sample: Sample) -> list[int]:
    """The correct responses of mixed groups, over which Δ of the step is taken."""
    correct = sample.correct
    mixed = mixed_groups(correct, sample.draw.groups).values()
    return [row for rows in mixed for row in rows if correct[row]]


@torch.no_grad()
def delta_correct(trainer: Trainer, sample: Sample) -> float:
    """The first number of `measure` alone; it needs a pass over few rows."""
    batch, rows = sample.batch, correct_rows(sample)
    logp = batch.score(trainer.policy.model, rows, trainer.config.micro_tokens)
    return float(((logp - batch.old[rows]) * batch.mask[rows]).double().sum(1).mean())


@torch.no_grad()
def measure(trainer: Trainer, sample: Sample, probes: float | None) -> dict[str, float | None]:
    """The effect of the current weights, compared with those that sampled; `probes` is `probe_set`
    before the update. NULL is not measured.

    delta_correct: mean over the correct responses of mixed groups of Σ (log π_post − log π_old),
    nats a response (arXiv 2512.04220 v2, Eq. 3, of a whole step). kl: KL(π_old ‖ π_post), nats a
    token, by `kl_k3` with the two policies exchanged, since π_old sampled. entropy: of π_post, nats
    a token, on the same tokens. retention_delta: mean over earlier correct responses of Σ (log
    π_post − log π before the step). probe_set: the same for the fixed probe set.
    """
    batch, step = sample.batch, sample.draw.step
    rows = list(range(len(batch.lengths)))
    passes = by_tokens(batch.lengths, rows, trainer.config.micro_tokens)
    scores = batch.score_passes(
        lambda ids, mask: action_scores(trainer.policy.model, ids, mask, entropy=True), passes
    )
    assert scores.entropy is not None
    delta = ((scores.logp - batch.old) * batch.mask).double().sum(1)  # (B,)
    tokens = int(batch.mask.sum())
    due, changes = trainer.retention.due(step), []
    for response, logp in zip(due, trainer.score_retained(step), strict=True):
        if response.scored == step - 1:
            changes.append(float(logp.sum()) - float(response.previous.sum()))
    after = probe_set(trainer)
    return {
        "delta_correct": _mean(delta[sorted(correct_rows(sample))].tolist()),
        "retention_delta": _mean(changes),
        "probe_set": None if after is None or probes is None else after - probes,
        "entropy": float((scores.entropy * batch.mask).sum()) / tokens,
        "kl": float(kl_k3(batch.old, scores.logp, batch.mask).sum()) / tokens,
    }


@torch.no_grad()
def probe_set(trainer: Trainer) -> float | None:
    """Mean Σ log π of the fixed probe set, nats a response; None if the run has none."""
    return _mean(trainer.probes.set_logps().tolist()) if trainer.probes.state else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
