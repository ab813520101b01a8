"""What the metrics of trainers are whose packages cannot be installed together, or not on a CPU:
their own functions are taken out of their sources and called on made-up rows. Prints for each
result the candidate definitions that equal it; the atlas calls this "ran the function".

    python tests/drift/functions_experiment.py FOLDER

FOLDER has the sources, unpacked, by the names in SOURCES; what is not there is left out. Functions
are executed: take the sources from where you would install the trainer.
"""

from __future__ import annotations

import ast
import collections
import math
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from made_up_rows import (
    HIGH,
    LOW,
    PER_TOKEN,
    RESPONSES,
    SHAPE,
    Rows,
    average,
    candidates,
    inner,
    log_r,
    made_up,
    padded,
)
from torch import nn

SOURCES = {
    "tinker": "tinker_cookbook/tinker_cookbook/rl/metrics.py",
    "ms-swift": "ms_swift/swift/rlhf_trainers/grpo_trainer.py",
    "skyrl": "skyrl/skyrl/backends/skyrl_train",
    "unsloth": "unsloth_zoo/unsloth_zoo/rl_replacements.py",
    "roll": "ROLL/roll/utils",
    "areal": "areal/areal/utils/functional/functional.py",
    "nemo-rl": "NeMo-RL/nemo_rl/algorithms",
    "prime-rl": "prime-rl/src/prime_rl/trainer/rl/loss.py",
    "openrlhf": "openrlhf/openrlhf/models",
    "slime": "slime/slime/backends/megatron_utils/cp_utils.py",
}
Results = Iterator[tuple[str, float]]
MORE: dict[str, Callable[[dict[str, Any]], torch.Tensor]] = {
    "mean r": lambda r: log_r(r).exp(),
    "mean exp |log r|": lambda r: log_r(r).abs().exp(),
    "mean 1/r − 1 + log r": lambda r: (-log_r(r)).exp() - 1 + log_r(r),
    "mean (log r)²/2 (k2)": lambda r: log_r(r) ** 2 / 2,
    "mean log π_old − log π_behaviour": log_r,
    "log π_inner − log π_old": inner,
    "(log π_inner − log π_old)²/2 (k2)": lambda r: inner(r) ** 2 / 2,
    "mean −π/π_behaviour · log π": lambda r: (
        -(r["log_probs"] - r["rollout_log_probs"]).exp() * r["log_probs"]),
    "mean π_old − π_behaviour: of probabilities, with sign": lambda r: (
        r["old_log_probs"].exp() - r["rollout_log_probs"].exp()),
    "mean π_inner/π_old": lambda r: inner(r).exp(),
    "mean |log π_inner − log π_behaviour|": lambda r: (
        r["log_probs"] - r["rollout_log_probs"]).abs(),
}
PARTS = ((0, 5), (5, 9), (9, RESPONSES))  # micro-batches


def take(file: Path, *names: str, **more: Any) -> Any:
    """Functions, methods and classes of a file, without what it imports and what is annotated."""
    space: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional, "math": math,
                             "Tensor": torch.Tensor, "cast": typing.cast, **more}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name not in names:
            continue
        for part in ast.walk(node):
            if isinstance(part, ast.FunctionDef):
                part.returns, part.decorator_list = None, []
                for argument in (*part.args.args, *part.args.kwonlyargs):
                    argument.annotation = None
        if isinstance(node, ast.ClassDef):
            node.bases = [b for b in node.bases if ast.unparse(b) == "nn.Module"]
        node.decorator_list = []
        future = ast.parse("from __future__ import annotations").body
        exec(compile(ast.Module([*future, node], []), str(file), "exec"), space)
    return types.SimpleNamespace(**{name: space[name] for name in names})


class Trainers:
    """A method for each, which yields names and numbers."""

    def __init__(self, folder: Path, rows: Rows) -> None:
        self.at = {name: folder / path for name, path in SOURCES.items()}
        self.rows = rows
        (self.mask, self.old, self.now, self.engine, self.advantages, self.ref, self.entropy) = (
            padded(rows, name) for name in
            ("response_mask", "old_log_probs", "log_probs", "rollout_log_probs", "advantages",
             "ref_log_prob", "inner_entropy"))

    def mean(self, x: torch.Tensor) -> float:
        return float((x * self.mask).sum() / self.mask.sum())

    def tinker(self, file: Path) -> Results:
        def tensor(value: torch.Tensor) -> Any:
            return types.SimpleNamespace(to_torch=lambda: value)

        function = take(file, "compute_kl_sample_train", safezip=zip).compute_kl_sample_train
        data = [types.SimpleNamespace(loss_fn_inputs={
            "logprobs": tensor(r["rollout_log_probs"]), "mask": tensor(r["response_mask"]),
        }) for r in self.rows]
        yield from function(data, [r["old_log_probs"] for r in self.rows]).items()

    def averaged(self, of: Callable[..., dict[str, float]]) -> Results:
        """Means of what a trainer computes of a micro-batch, given the micro-batch's rows."""
        whole = [self.now, self.old, self.ref, self.engine, self.advantages, self.mask,
                 self.entropy]
        sizes = [n for rank in SHAPE for mini in rank for n in mini]
        parts = [of(*micro) for micro in zip(*(x.split(sizes) for x in whole), strict=True)]
        yield from ((name, sum(float(p[name]) for p in parts) / len(parts)) for name in parts[0])

    def ms_swift(self, file: Path) -> Results:
        function = take(file, "_compute_rollout_offpolicy_metrics")
        yield from function._compute_rollout_offpolicy_metrics(
            None, self.old, self.engine, self.mask).items()
        loss = take(file, "_compute_loss_and_metrics", gather=lambda x: x, nanmax=torch.max,
                    nanmin=torch.min)._compute_loss_and_metrics

        def micro(now: Any, old: Any, ref: Any, _: Any, advantages: Any, mask: Any, entropy: Any
                  ) -> dict[str, float]:
            settings = collections.defaultdict(lambda: None, {
                "model": nn.Module(), "beta": 0.1, "importance_sampling_level": "token",
                "loss_type": "bnpo", "epsilon_low": LOW, "epsilon_high": HIGH,
                "compute_entropy": True, "sdar_loss_coef": 0,
                "args": types.SimpleNamespace(
                    log_entropy=True, top_entropy_quantile=1.0, delta=None),
                "accelerator": types.SimpleNamespace(gather_for_metrics=lambda x: x),
                "_get_per_token_logps_and_entropies": lambda *_, **__: (now, entropy),
            })
            trainer = type("Trainer", (), {"__getattr__": lambda _, name: settings[name]})()
            batch = types.SimpleNamespace(
                completion_mask=mask, truncated_mask=None, ref_per_token_logps=ref,
                advantages=advantages, old_per_token_logps=old, rollout_per_token_logps=None)
            stat = loss(trainer, None, {}, batch)[1]
            return {"kl": stat["kl"], "entropy/mean": stat["entropy"]["entropy_mean"],
                    "clip_ratio/region_mean": stat["clipping"]["region_clip_mean"]}

        yield from self.averaged(micro)

    def skyrl(self, folder: Path) -> Results:
        mean = take(folder / "utils" / "torch_utils.py", "masked_mean").masked_mean
        kl = take(folder / "utils" / "ppo_utils.py", "compute_approx_kl").compute_approx_kl
        kinds = {f"MINIBATCH_ROLLOUT_LOGPROB_DIFF_{kind}_KEY": kind
                 for kind in ("MEAN", "SQ_MEAN", "MAX", "MIN")}
        name = "compute_minibatch_rollout_logprob_diff_metrics"
        difference = vars(take(folder / "workers" / "worker_utils.py", name, masked_mean=mean,
                               **kinds))[name]

        def micro(now: Any, _: Any, ref: Any, engine: Any, __: Any, mask: Any, entropy: Any
                  ) -> dict[str, float]:  # put together as its worker does it
            return {
                "policy_kl": mean(kl(now, ref, mask), mask, dim=-1).mean(),
                "policy_entropy": mean(entropy, mask),
                "minibatch_rollout_logprobs_abs_diff_mean": difference(now, engine, mask)["MEAN"],
            }

        yield from self.averaged(micro)

    def unsloth(self, file: Path) -> Results:
        function = take(file, "grpo_compute_loss", "grpo_rollout_mismatch_stats",
                        "grpo_rollout_mismatch_metrics")

        def micro(now: Any, old: Any, ref: Any, engine: Any, advantages: Any, mask: Any, _: Any
                  ) -> dict[str, float]:
            length, kl = function.grpo_compute_loss(
                ref, now, old, engine, mask, mask, 0.1, advantages, epsilon_low=LOW,
                epsilon_high=HIGH)[1:3]
            return {"completion_length": length, "kl": kl}

        yield from self.averaged(micro)
        weights = (self.old - self.engine).exp().clamp(max=1.2)
        yield from function.grpo_rollout_mismatch_metrics(function.grpo_rollout_mismatch_stats(
            self.old, self.engine, self.mask, weights)).items()

    def roll(self, folder: Path) -> Results:
        means = take(folder / "functionals.py", "masked_mean", "masked_sum")
        whole = vars(means) | vars(take(
            folder / "functionals.py", "agg_loss", "compute_approx_kl", **vars(means)))
        for kind, name in (("kl", "policykl"), ("mse", "approxkl")):
            yield name, self.mean(whole["compute_approx_kl"](self.now, self.old, self.mask, kind))
        correction = take(
            folder / "train_infer_corrections.py", "_compute_all_granularity",
            "_infer_global_valid_samples_from_mask", "_infer_global_valid_tokens_from_mask",
            "compute_train_infer_correction", compute_segment_masked_mean=lambda x, mask: x,
            **whole)
        settings = types.SimpleNamespace(is_weight=types.SimpleNamespace(enabled=False), filters=[])
        yield from correction.compute_train_infer_correction(
            settings, self.mask, self.old, self.engine)[2].items()

    def areal(self, file: Path) -> Results:
        def keep_all(loss_mask: Any, proximal_logprobs: Any, old_logprobs: Any, **_: Any) -> Any:
            return types.SimpleNamespace(
                loss_mask=loss_mask, behave_imp_weight=(proximal_logprobs - old_logprobs).exp(),
                filtered_fraction=0.0)

        function = take(file, "ppo_actor_loss_fn", apply_rejection_sampling=keep_all)
        _, stat = function.ppo_actor_loss_fn(
            logprobs=self.now, proximal_logprobs=self.old, old_logprobs=self.engine,
            advantages=self.advantages, eps_clip=LOW, eps_clip_higher=HIGH,
            loss_mask=self.mask.bool(), rejection_sampling=True)
        for name in ("approx_kl", "importance_weight", "clip_mask", "behave_approx_kl",
                     "behave_imp_weight"):
            yield name, self.mean(stat[name].float())

    def nemo_rl(self, folder: Path) -> Results:
        means = take(folder / "utils.py", "masked_mean", "calculate_kl")
        levels = types.SimpleNamespace(TOKEN_LEVEL="token")
        loss = take(
            folder / "loss" / "loss_functions.py", "ClippedPGLossFn", LossType=levels,
            LossInputType=types.SimpleNamespace(LOGPROB=None), **vars(means)).ClippedPGLossFn
        function = object.__new__(loss)
        function.__dict__ |= {
            "reference_policy_kl_type": "k3", "loss_type": "token", "ratio_clip_min": LOW,
            "ratio_clip_max": HIGH, "ratio_clip_c": None,
        } | dict.fromkeys((
            "force_on_policy_ratio", "reference_policy_kl_penalty", "disable_ppo_ratio",
            "sequence_level_importance_ratios", "use_cispo", "truncated_importance_sampling_ratio",
            "truncated_importance_sampling_type", "use_importance_sampling_correction",
            "positive_example_nll_weight"), 0) | {
            "truncated_importance_sampling_ratio": None, "truncated_importance_sampling_type": None,
        }
        total: dict[str, float] = {}
        for first, end in PARTS:  # sums over micro-batches, as its workers and driver make them
            shifted = {name: nn.functional.pad(x[first:end], (1, 0)) for name, x in (
                ("token_mask", self.mask), ("advantages", self.advantages),
                ("prev_logprobs", self.old), ("generation_logprobs", self.engine))}
            data = shifted | {"sample_mask": torch.ones(end - first)}
            _, stat = function(self.now[first:end], data, torch.tensor(RESPONSES), self.mask.sum())
            for name, value in stat.items():
                total[name] = total.get(name, 0.0) + value
        yield from ((name, total[name]) for name in (
            "gen_kl_error", "policy_kl_error", "token_mult_prob_error", "approx_entropy",
            "sampling_importance_ratio", "probs_ratio"))

    def prime_rl(self, file: Path) -> Results:
        function = take(file, "compute_importance_ratio_and_mismatch_kl")
        values = function.compute_importance_ratio_and_mismatch_kl(self.old, self.engine)
        yield "mismatch_kl", self.mean(values[2])

    def openrlhf(self, folder: Path) -> Results:
        mean = take(folder / "utils.py", "masked_mean").masked_mean
        total = take(folder / "loss.py", "aggregate_loss", masked_mean=mean).aggregate_loss
        loss = take(folder / "loss.py", "PolicyLoss", masked_mean=mean, aggregate_loss=total)
        function = loss.PolicyLoss(LOW, HIGH, is_correction_level="token")
        n = self.mask.sum().item()
        norm = {"batch_num_tokens": n / len(PARTS)}  # of DeepSpeed's accumulation
        sums: dict[str, float] = {}
        for first, end in PARTS:
            part = [x[first:end] for x in
                    (self.now, self.old, self.advantages, self.mask, self.engine)]
            _, clip, kl, engine, _ = function(*part, **norm)
            entropy = total(padded(self.rows, "inner_entropy")[first:end], part[3], **norm)
            for name, value in (("ppo_clip_ratio", clip), ("ppo_kl", kl), ("vllm_kl", engine),
                                ("entropy_loss", entropy)):
                sums[name] = sums.get(name, 0.0) + value.item() * part[3].sum().item() / n
        yield from sums.items()

    def slime(self, file: Path) -> Results:
        mpu = types.SimpleNamespace(get_context_parallel_world_size=lambda: 1)
        reduce = take(file, "get_sum_of_sample_mean", mpu=mpu).get_sum_of_sample_mean(
            [0] * RESPONSES, [len(r["responses"]) for r in self.rows],
            [r["response_mask"] for r in self.rows])
        old, now, engine = (torch.cat([r[name] for r in self.rows]) for name in
                            ("old_log_probs", "log_probs", "rollout_log_probs"))
        yield "train_rollout_logprob_abs_diff", reduce((old - engine).abs()) / RESPONSES
        yield "ppo_kl", reduce(old - now) / RESPONSES


def main(folder: Path) -> None:
    rows = made_up()
    PER_TOKEN.update(MORE)
    every = iter(rows)
    cut = [[[[next(every) for _ in range(n)] for n in mini] for mini in rank] for rank in SHAPE]
    values = {(a, b): v for a, b, v in candidates(rows, cut)}
    tokens = [float(r["response_mask"].sum()) for r in rows]
    sums = [float((r["inner_entropy"] * r["response_mask"]).sum()) for r in rows]
    values[("entropy of the vocabulary, current policy", "action tokens of a micro-batch; "
            "micro-batches weigh by the square of their tokens")] = sum(
        sum(sums[a:b]) * sum(tokens[a:b]) for a, b in PARTS) * len(PARTS) / sum(tokens) ** 2
    values[("mean action tokens of a response", "responses of a micro-batch; micro-batches weigh "
            "the same")] = average(average(float(r["response_mask"].sum()) for r in micro)
                                   for rank in cut for mini in rank for micro in mini)
    products = [math.exp((log_r(r) * r["response_mask"]).sum()) for r in rows]
    values[("mean product of a response's r", "responses")] = sum(products) / RESPONSES
    trainers = Trainers(folder, rows)
    for name, place in trainers.at.items():
        if not place.exists():
            print(f"{name}: {place} is not there")
            continue
        for key, value in getattr(trainers, name.replace("-", "_"))(place):
            fit = [" over ".join(k) for k, v in values.items()
                   if math.isclose(v, float(value), rel_tol=1e-5, abs_tol=1e-6)]
            print(f"{name} {key} {float(value):.6f}: {'; or '.join(fit) or 'none'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
