"""What verl's metrics are: its loss, its aggregation and its metric functions are called on made-up
rows, as its trainer and workers call them (two ranks, two mini-batches of two micro-batches of
unequal sizes), and the candidate definitions that equal the results are printed, as JSON."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import math
from typing import Any

import torch
from hydra import compose, initialize_config_module
from made_up_rows import (
    HIGH,
    LOW,
    PROMPT,
    RESPONSES,
    SHAPE,
    WIDTH,
    Rows,
    candidates,
    made_up,
    padded,
)
from verl import DataProto
from verl.trainer.ppo.core_algos import agg_loss
from verl.trainer.ppo.metric_utils import compute_data_metrics
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.debug.metrics import calculate_debug_metrics
from verl.utils.metric import reduce_metrics
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.losses import ppo_loss

TOLERANCE = 1e-5


def nested(rows: Rows, names: list[str]) -> Any:
    result = list_of_dict_to_tensordict([{n: r[n] for n in names} for r in rows])
    for n in names:
        result[n] = torch.nested.as_nested_tensor([r[n] for r in rows], layout=torch.jagged)
    return result


def updates(rows: Rows, actor: Any) -> tuple[dict[str, float], list[list[list[Rows]]]]:
    """The metrics of `update_actor`, and the rows: rank → mini-batch → micro-batch."""
    every, cut = iter(rows), []
    for rank in SHAPE:
        cut.append([[list(itertools.islice(every, n)) for n in mini] for mini in rank])
    fields = ["prompts", "responses", "response_mask", "old_log_probs", "advantages",
              "ref_log_prob"]
    metrics: dict[str, list[Any]] = {}
    for minis in zip(*cut, strict=True):
        tokens = sum(int(r["response_mask"].sum()) for mini in minis for m in mini for r in m)
        responses = sum(len(m) for mini in minis for m in mini)
        of_ranks: list[dict[str, Any]] = []
        for mini in minis:
            mine: dict[str, Any] = {}
            for micro in mini:
                data = nested(micro, fields)
                tu.assign_non_tensor(data, dp_size=len(SHAPE), batch_num_tokens=tokens,
                                     global_batch_size=responses)
                # verl's model gives prompts as well, and position t has the number of token t + 1.
                output = {
                    name: torch.nested.as_nested_tensor([
                        torch.cat([torch.zeros(PROMPT - 1), r[of], torch.zeros(1)]) for r in micro
                    ], layout=torch.jagged)
                    for name, of in (("log_probs", "log_probs"), ("entropy", "inner_entropy"))
                }
                _, stats = ppo_loss(actor, output, data)
                for name, value in stats.items():
                    if hasattr(value, "append") and name in mine:
                        mine[name].append(value)
                    else:
                        mine.setdefault(name, value)
            of_ranks.append(mine)
        for name in of_ranks[0]:
            values = [mine[name] for mine in of_ranks]
            if hasattr(values[0], "aggregate"):
                metrics.setdefault(name, []).append(type(values[0]).aggregate_dp(values))
    return reduce_metrics({
        name if name.startswith("actor/") else f"actor/{name}": value
        for name, value in metrics.items()
    }), cut


def of_batch(rows: Rows, actor: Any) -> dict[str, float]:
    """The metrics that the trainer computes of the whole batch."""
    mask = padded(rows, "response_mask")
    values = {"actor/entropy": agg_loss(
        padded(rows, "entropy"), mask, actor.loss_agg_mode, loss_scale_factor=None).item()}
    responses = padded(rows, "responses")
    scores = torch.zeros(RESPONSES, WIDTH)
    for i, r in enumerate(rows):
        scores[i, len(r["responses"]) - 1] = r["score"]
    attention = torch.cat([torch.ones(RESPONSES, PROMPT), (responses > 0).float()], 1).long()
    batch = DataProto.from_dict(tensors={
        "prompts": padded(rows, "prompts", PROMPT), "responses": responses,
        "response_mask": mask, "attention_mask": attention, "token_level_scores": scores,
        "token_level_rewards": scores - 0.01 * mask, "advantages": padded(rows, "advantages"),
        "returns": padded(rows, "advantages"),
        "old_log_probs": padded(rows, "old_log_probs"),
        "rollout_log_probs": padded(rows, "rollout_log_probs"),
    })
    values |= compute_data_metrics(batch, use_critic=False)
    values |= calculate_debug_metrics(batch)
    _, _, correction = compute_rollout_correction_and_rejection_mask(
        old_log_prob=padded(rows, "old_log_probs"),
        rollout_log_prob=padded(rows, "rollout_log_probs"), response_mask=mask,
        rollout_is="token", rollout_is_threshold=1.2,
    )
    return {name: float(v) for name, v in (values | correction).items()}


def main() -> None:
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[
            "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.rollout.n=1",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
            "actor_rollout_ref.actor.entropy_coeff=0.01",
            "actor_rollout_ref.actor.use_kl_loss=true",
            f"actor_rollout_ref.actor.clip_ratio_low={LOW}", "actor_rollout_ref.rollout.name=vllm",
            f"actor_rollout_ref.actor.clip_ratio_high={HIGH}", "trainer.logger=[]",
        ])
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    rows = made_up()
    logged, cut = updates(rows, actor)
    logged |= of_batch(rows, actor)
    values = {(a, b): v for a, b, v in candidates(rows, cut)}
    print(json.dumps({
        "version": importlib.metadata.version("verl"),
        "matches": {
            name: [list(key) for key, v in values.items()
                   if math.isclose(v, value, rel_tol=TOLERANCE, abs_tol=TOLERANCE)]
            for name, value in sorted(logged.items())
        },
        "values": [{name: float(v) for name, v in logged.items()}],
    }, ensure_ascii=False))


if __name__ == "__main__":
    main()
