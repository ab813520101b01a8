"""Log-probabilities by TRL's own scoring, and the inputs of a micro-batch's loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ...recording.batch import Batch
from ...recording.retention import KeptResponse
from ..common.hooks import evaluation_mode
from .rollouts import Inputs, Update, action_mask

# What models with images need besides tokens, as TRL's `_compute_loss` passes it on.
MULTIMODAL = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes",
    "num_tiles", "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)
CLIPPED_BELOW_AND_ABOVE = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")


def score(
    method: Callable[..., Any], trainer: Any, inputs: Inputs, rows: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """(log-probabilities, entropies) of the completions under the present weights, (N, T), nats,
    temperature included as in TRL's loss.

    method: `_get_per_token_logps_and_entropies`. rows (n,): score these rows alone, which `inputs`
    with images do not allow; as many on every rank, so that sharded weights can be gathered. The
    model is in evaluation mode, which draws no random numbers.
    """
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    if rows is not None:
        ids, attention = ids[rows], attention[rows]
    images = {name: inputs[name] for name in MULTIMODAL if inputs.get(name) is not None}
    with torch.no_grad(), evaluation_mode(trainer.model):
        logps, entropies, *_ = method(
            trainer.model, ids, attention, inputs["completion_ids"].size(1),
            batch_size=trainer.args.per_device_train_batch_size, compute_entropy=True, **images,
        )
    return logps, entropies


def score_kept(
    method: Callable[..., Any], trainer: Any, due: Sequence[KeptResponse], batch: Batch, n: int
) -> list[Tensor]:
    """log π of each token of the kept responses under the present weights; for each (T,), 0 in the
    prompt. `n` sequences are scored, so that it can be the same number on every rank; the first
    of the batch stands for those that are missing."""
    if not n:
        return []
    parts = [(r.ids[:k], r.ids[k:]) for r in due for k in [int(r.mask.argmax())]]
    parts += [(np.array(batch.prompt_ids[0]), np.array(batch.completion_ids[0]))] * (n - len(due))
    prompts, completions = zip(*parts, strict=True)
    inputs: Inputs = {}
    for name, rows, side in (("prompt", prompts, "left"), ("completion", completions, "right")):
        ids = [torch.from_numpy(row.astype(np.int64)) for row in rows]
        for what, tensors in (("ids", ids), ("mask", [torch.ones_like(row) for row in ids])):
            table = pad_sequence(tensors, batch_first=True, padding_side=side)
            inputs[f"{name}_{what}"] = table.to(trainer.accelerator.device)
    logps = score(method, trainer, inputs)[0].double().cpu()
    return [
        torch.cat([torch.zeros(len(prompt)), logp[: len(completion)]])
        for (prompt, completion), logp in zip(parts[: len(due)], logps, strict=False)
    ]


def has_images(inputs: Inputs) -> bool:
    """Image inputs do not have one entry per row, so rows cannot be selected."""
    return any(inputs.get(name) is not None for name in MULTIMODAL)


def is_noisy(model: nn.Module) -> bool:
    """Whether a forward pass in training mode draws random numbers: dropout of any kind, or a
    router's jitter. Then log-probabilities of two passes differ though the weights do not."""
    return any(
        (isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0)
        or any(
            isinstance(value, float) and value > 0 and ("drop" in name or "jitter" in name)
            for name, value in vars(module).items()
        )
        for module in model.modules()
    )


def measure(update: Update, trainer: Any, inputs: Inputs, new: Tensor | None, loss: Tensor) -> None:
    """Add a micro-batch to its update: importance ratios and clipped tokens as in TRL's loss, KL,
    and the loss itself. `new` (B, T): the log-probabilities that the loss was computed from, None
    if they are not known."""
    mask = action_mask(inputs)
    update.n_tokens += int(mask.sum())
    if new is not None:
        _compare(update, trainer, inputs, new, mask)
    # TRL's number is the policy loss, unless it adds a KL, an entropy bonus or a router loss.
    terms = ("_entropy_bonus_enabled", "aux_loss_enabled")
    if trainer.beta == 0 and not any(getattr(trainer, name, False) for name in terms):
        update.losses.append(loss)


def _compare(update: Update, trainer: Any, inputs: Inputs, new: Tensor, mask: Tensor) -> None:
    """The loss's log-probabilities against π_old and against the reference."""
    old = inputs.get("old_per_token_logps")
    ratio, clips = _ratios(trainer, new, new if old is None else old, mask, inputs["advantages"])
    update.ratios.append(ratio[mask])
    if clips is not None:
        update.clipped.append((clips & mask).sum())
    if inputs.get("ref_per_token_logps") is not None:
        gap = (inputs["ref_per_token_logps"] - new)[mask].double()
        update.kl_sums.append((gap.exp() - gap - 1).sum())


def _ratios(
    trainer: Any, new: Tensor, old: Tensor, mask: Tensor, advantages: Tensor
) -> tuple[Tensor, Tensor | None]:
    """(importance ratios (N, T), where the clip is active (N, T) bool) as TRL's loss has them; None
    for a loss that does not clip. With ratios of sequences each token has its sequence's."""
    log_ratio = new - old
    if trainer.importance_sampling_level == "sequence":
        n = mask.sum(-1, keepdim=True).clamp(min=1)
        log_ratio = (log_ratio * mask).sum(-1, keepdim=True) / n
    ratio = log_ratio.exp().expand(mask.shape)
    if advantages.dim() == 1:
        advantages = advantages.unsqueeze(1)
    if trainer.loss_type == "cispo":
        return ratio, (advantages > 0) & (ratio > trainer.epsilon_high)
    if trainer.loss_type not in CLIPPED_BELOW_AND_ABOVE:
        return ratio, None
    above = (advantages > 0) & (ratio > 1 + trainer.epsilon_high)
    return ratio, above | ((advantages < 0) & (ratio < 1 - trainer.epsilon_low))
