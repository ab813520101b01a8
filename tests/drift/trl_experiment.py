"""What each metric that TRL's GRPOTrainer logs is: two ranks train a few thousand weights on
made-up rollouts, every candidate definition is computed from the rows, and the candidates that
equal the logged numbers are printed, as JSON. Of this project it needs nothing:

    python -m torch.distributed.run --standalone --nproc_per_node 2 trl_experiment.py FOLDER

Responses are of unequal lengths; one group's rewards are all equal, some responses are cut off,
some hold tool text, some rewards are None. Each of two passes over a rollout batch makes three
updates of two micro-batches; a log line covers two updates; gradients are clipped; the engine's
log-probabilities are made up.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

WORDS = ["<pad>", "<eos>", *"abcdefghijklmnop"]
TEMPERATURE, BETA, LOW, HIGH, LENGTH, GROUP = 0.7, 0.05, 0.02, 0.03, 14, 4
RATE, STEPS, MICRO = 5e-3, 12, 6  # MICRO: micro-batches of a rollout batch
CLIP = 0.01
TOOL_TEXT = len(WORDS) - 1
# Rollouts whose lengths tell definitions apart: length, tool text of two tokens, cut off.
SPECIAL = {0: (4, True, True), 1: (5, True, False), 2: (LENGTH, True, True),
           3: (LENGTH - 2, False, True), 4: (LENGTH - 1, True, False),
           5: (LENGTH - 3, False, False)}
TOLERANCE = 1e-6
Rows = list[dict[str, torch.Tensor]]  # micro-batches


class Watched(GRPOTrainer):  # type: ignore[misc]
    """Keeps the rows of every micro-batch, and where the log lines fall."""

    events: list[tuple[str, Any]]

    def _calculate_rewards(self, *arguments: Any, **more: Any) -> torch.Tensor:
        rewards = super()._calculate_rewards(*arguments, **more)
        self.events.append(("rewards", rewards.clone()))
        return rewards

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        width = inputs["completion_ids"].shape[1]
        with torch.no_grad():
            net = self.accelerator.unwrap_model(model)
            logits = net(input_ids=ids, attention_mask=attention).logits[:, -width - 1 : -1]
        row = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        for name, at in (("", TEMPERATURE), ("_1", 1.0)):
            every = (logits / at).log_softmax(-1)
            row["logp" + name] = every.gather(-1, inputs["completion_ids"][..., None])[..., 0]
            row["entropy" + name] = -(every.exp() * every).sum(-1)
        loss = super()._compute_loss(model, inputs)
        self.events.append(("micro", row))
        return loss

    def training_step(self, *arguments: Any, **more: Any) -> torch.Tensor:
        loss = super().training_step(*arguments, **more)
        self.events.append(("before clipping", self.norm()))
        return loss

    def norm(self) -> float:
        parts = [p.grad.norm() for p in self.model.parameters() if p.grad is not None]
        return torch.stack(parts).norm().item()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        self.events.append(("log", dict(self.state.log_history[-1])))


class Engine:
    """In place of vLLM."""

    def sync_weights(self) -> None:
        pass


def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Made-up rollouts, with what of them is tool text and with the engine's log-probabilities."""
    seed = 1000 * trainer.accelerator.process_index + trainer.state.global_step
    draw = random.Random(seed)
    out: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
    for i, prompt in enumerate(prompts):
        length, tool, cut = SPECIAL.get(i) or (
            draw.randint(6, 10), draw.random() < 0.5, draw.random() < 0.3
        )
        ids = [draw.randrange(2, TOOL_TEXT) for _ in range(length)]
        if tool:
            ids[1:3] = [TOOL_TEXT, TOOL_TEXT]
        if not cut:
            ids[-1] = 1
        out["prompt_ids"].append(trainer.processing_class(prompt)["input_ids"])
        out["completion_ids"].append(ids)
        out["env_mask"].append([int(token != TOOL_TEXT) for token in ids])
        out["logprobs"].append([draw.gauss(-2.9, 0.2) for _ in ids])
    return out


def parity(completion_ids: list[list[int]], data_source: list[str], **_: Any) -> list[Any]:
    """The same for all of a group in some groups; None for a rollout here and there."""
    return [None if ids[0] == 2 else 0.5 if s == "equal" else sum(ids) % 3
            for ids, s in zip(completion_ids, data_source, strict=True)]


def brevity(completion_ids: list[list[int]], data_source: list[str], **_: Any) -> list[Any]:
    """None for the other groups."""
    return [None if ids[0] == 2 or s != "plain" else len(ids) / 10
            for ids, s in zip(completion_ids, data_source, strict=True)]


def make(folder: Path, **changes: Any) -> Watched:
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>"
    )
    torch.manual_seed(0)
    policy = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        initializer_range=0.3, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    ))
    saved = folder / f"policy{os.environ.get('RANK', '0')}"
    policy.save_pretrained(saved)
    sources = ["equal", "plain", "other", "plain"]
    questions = [{"prompt": f"{a} {b}", "data_source": sources[(i + j) % 4]}
                 for i, a in enumerate("abcd") for j, b in enumerate("efgh")]
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "steps_per_generation": MICRO, "num_iterations": 2, "num_generations": GROUP,
        "max_steps": STEPS,
        "max_completion_length": LENGTH, "learning_rate": RATE, "lr_scheduler_type": "linear",
        "max_grad_norm": CLIP, "beta": BETA, "temperature": TEMPERATURE, "epsilon": LOW,
        "epsilon_high": HIGH, "mask_truncated_completions": True, "reward_weights": [1.0, 0.5],
        "logging_steps": 2, "seed": 5, "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "save_strategy": "no", "report_to": [],
        "disable_tqdm": True, "ddp_backend": "gloo",
    }
    trainer = Watched(
        model=str(saved), args=GRPOConfig(output_dir=str(folder / "trl"), **(settings | changes)),
        processing_class=tokenizer, reward_funcs=[parity, brevity], rollout_func=rollouts,
        train_dataset=Dataset.from_list(questions),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.events = []
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, Engine(), -1
    return trainer


# ---- the candidates ------------------------------------------------------------------------------

SINCE = "since the last log"
LOSS_TOKENS = "action tokens that the loss counts"


def averages(x: Callable[[dict[str, Any]], torch.Tensor], window: list[Rows], last: list[Rows]
             ) -> Iterator[tuple[str, float]]:
    """Means of a quantity of tokens over everything it could be a mean over. `window` holds for
    each rank its micro-batches since the last log, `last` those of the last update."""
    masks = {
        LOSS_TOKENS: lambda m: m["mask"],
        "action tokens": lambda m: m["action"],
        f"{LOSS_TOKENS}, with tool text": lambda m: m["completion_mask"],
        "positions, with padding": lambda m: torch.ones_like(m["mask"]),
    }
    for (of, mask), (when, ranks) in itertools.product(
        masks.items(), ((SINCE, window), ("of the last update", last))
    ):
        pairs = [[(x(m), mask(m).float()) for m in rank] for rank in ranks]
        everything = [pair for rank in pairs for pair in rank]

        def mean(of_these: Any) -> float:  # 0 of nothing, as everywhere in TRL
            return sum((v * w).sum().item() for v, w in of_these) / max(
                sum(w.sum().item() for _, w in of_these), 1.0
            )

        def by_response(of_these: Any) -> float:
            return torch.cat([(v * w).sum(1) / w.sum(1) for v, w in of_these]).nanmean().item()

        same = f"micro-batches {when} weigh the same"
        yield f"{of} {when}", mean(everything)
        yield f"{of}, of all ranks; {same}", average(map(mean, zip(*pairs, strict=True)))
        yield f"{of}; ranks and {same}", average(mean([p]) for p in everything)
        each = f"responses, each its own mean over {of}"
        yield f"{each}; {when}", by_response(everything)
        yield f"{each}; {same}", average(map(by_response, zip(*pairs, strict=True)))
        yield f"{each}; ranks and {same}", average(by_response([p]) for p in everything)


def concat(lists: Any) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


def average(values: Any) -> float:
    values = list(values)
    return sum(values) / len(values)


def shares(x: Callable[[dict[str, Any]], torch.Tensor], window: list[Rows], pick: Any
           ) -> Iterator[tuple[str, float]]:
    """The smallest or largest share of tokens of a response or a rank."""
    def responses(m: dict[str, Any]) -> list[float]:
        per = (x(m) * m["mask"]).sum(1) / m["mask"].sum(1)
        return [v for v in per.tolist() if not math.isnan(v)]

    def rank(m: dict[str, Any]) -> list[float]:
        return [((x(m) * m["mask"]).sum() / m["mask"].sum().clamp(min=1)).item()]

    for of, values in (("a response", responses), ("a rank's micro-batch", rank)):
        pairs = [[values(m) for m in micro] for micro in window]
        together = [concat(at) for at in zip(*pairs, strict=True)]
        yield f"{of}; micro-batches {SINCE} weigh the same", average(map(pick, together))
        yield f"{of} {SINCE}", pick(concat(together))


def unclipped(m: dict[str, Any]) -> torch.Tensor:
    return (m["logp"] - m["old_per_token_logps"]).exp()


def ratio(m: dict[str, Any]) -> torch.Tensor:
    return (m["logp"] - m["ref_per_token_logps"])


def low(m: dict[str, Any]) -> torch.Tensor:
    return ((unclipped(m) < 1 - LOW) & (m["advantages"][:, None] < 0)).float()


def high(m: dict[str, Any]) -> torch.Tensor:
    return ((unclipped(m) > 1 + HIGH) & (m["advantages"][:, None] > 0)).float()


PER_TOKEN: dict[str, Callable[[dict[str, Any]], torch.Tensor]] = {
    "entropy of the vocabulary at the sampling temperature, current policy": lambda m: m["entropy"],
    "entropy of the vocabulary at temperature 1, current policy": lambda m: m["entropy_1"],
    "−log π of the sampled tokens": lambda m: -m["logp"],
    "k1 of current policy to reference": ratio,
    "k2 of current policy to reference": lambda m: ratio(m) ** 2 / 2,
    "k3 of current policy to reference": lambda m: (-ratio(m)).exp() + ratio(m) - 1,
    "k3 of current policy to reference, times π/π_old": lambda m: unclipped(m) * (
        (-ratio(m)).exp() + ratio(m) - 1),
    "k3 of reference to current policy": lambda m: ratio(m).exp() - ratio(m) - 1,
    "share of tokens on which the clip is active": lambda m: low(m) + high(m),
    "share of tokens on which the lower clip is active": low,
    "share of tokens on which the upper clip is active": high,
    "share of tokens whose ratio is outside the clip": lambda m: (
        (unclipped(m) < 1 - LOW) | (unclipped(m) > 1 + HIGH)).float(),
}


def surrogate(m: dict[str, Any], correction: float = 1.0) -> torch.Tensor:
    """The loss of a token."""
    a, r = m["advantages"][:, None], unclipped(m)
    loss = -torch.min(r * a, r.clamp(1 - LOW, 1 + HIGH) * a)
    k3 = PER_TOKEN["k3 of current policy to reference, times π/π_old"](m)
    plain = PER_TOKEN["k3 of current policy to reference"](m)
    return loss * m["importance_sampling_ratio"] + BETA * (k3 if correction else plain)


def numbers(rows: list[list[tuple[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Per log line: what was logged, and every candidate with its value."""
    positions = [[i for i, (kind, _) in enumerate(events) if kind == "log"] for events in rows]
    before = [0] * len(rows)
    generations, tokens_so_far = 0, 0.0
    for line in zip(*positions, strict=True):
        parts = [events[a:b] for events, a, b in zip(rows, before, line, strict=True)]
        before = [b + 1 for b in line]
        window = [[row for kind, row in part if kind == "micro"] for part in parts]
        logged = rows[0][line[0]][1]
        if not window[0]:
            continue  # the line at the end of the training
        last = [micro[-2:] for micro in window]
        values: dict[tuple[str, str], float] = {}
        for name, x in PER_TOKEN.items():
            values |= {(name, over): v for over, v in averages(x, window, last)}
        for name, x in (("lower", low), ("upper", high)):
            for word, pick in (("smallest", min), ("largest", max)):
                what = f"{word} share of tokens on which the {name} clip is active"
                values |= {(what, over): v for over, v in shares(x, window, pick)}
        norms = [v for kind, v in parts[0] if kind == "before clipping"][1::2]
        values[("gradient norm before clipping", "the last update")] = norms[-1]
        values[("gradient norm before clipping", f"updates {SINCE}")] = average(norms)
        values[("gradient norm before clipping", f"the largest {SINCE}")] = max(norms)
        values[("gradient norm after clipping", "the last update")] = min(norms[-1], CLIP)
        rates = [RATE * (1 - (logged["step"] - 1 + i) / STEPS) for i in (0, 1)]
        values[("learning rate of the last update", "")] = rates[0]
        values[("learning rate of the next update", "")] = rates[1]
        for plus in (0.0, 1.0):
            text = "loss with the KL term" + ("" if plus else ", which is not weighted by π/π_old")
            values |= {(text, over): v for over, v in losses(window, plus)}
        if "rewards" in [kind for kind, _ in parts[0]]:
            generations += 1
            rewards = [v for kind, v in rows[0] if kind == "rewards"][generations - 1]
            batch = [first_pass(events, generations) for events in rows]
            everything = concat(batch)
            values |= {(a, b): v for a, b, v in rollouts_of(rewards, everything)}
            values |= engine(batch)
            tokens_so_far += sum(
                (m["prompt_mask"].sum() + m["action"].sum()).item() for m in everything
            )
        values[("prompt and action tokens of all rollouts so far", "")] = tokens_so_far
        yield {"logged": logged, "values": values}


def first_pass(events: list[tuple[str, Any]], generation: int) -> Rows:
    """The micro-batches of a rank that make up a rollout batch, counted from 1."""
    starts = [i for i, (kind, _) in enumerate(events) if kind == "rewards"]
    return [m for kind, m in events[starts[generation - 1]:] if kind == "micro"][:MICRO]


def weighted(rewards: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Their sum; NaN where every one is None."""
    weights = torch.tensor([1.0, 0.5]) if weights is None else weights
    return (rewards * weights).nansum(1).masked_fill(rewards.isnan().all(1), math.nan)


def losses(window: list[Rows], correction: float) -> Iterator[tuple[str, float]]:
    def total(ms: Any) -> float:
        return sum((surrogate(m, correction) * m["mask"]).sum().item() for m in ms)

    def count(ms: Any) -> float:
        return sum(m["mask"].sum().item() for m in ms)

    updates = [[m for micro in window for m in micro[i : i + 2]] for i in (0, 2)]
    expected = sum(m["num_items_in_batch"].item() for micro in window for m in micro) / sum(
        1 for micro in window for _ in micro)  # tokens of the whole rollout batch
    yield (f"{LOSS_TOKENS}; updates {SINCE} weigh the same",
           average(total(u) / count(u) for u in updates))
    per_update = expected / (MICRO / 2)
    yield (f"{LOSS_TOKENS}, divided by the rollout batch's tokens per update; "
           f"updates {SINCE} weigh the same", average(total(u) / per_update for u in updates))
    yield (f"{LOSS_TOKENS}, divided by the rollout batch's tokens; updates {SINCE} weigh the same",
           average(total(u) / expected for u in updates))
    yield f"{LOSS_TOKENS} {SINCE}", total(concat(updates)) / count(concat(updates))
    yield f"{LOSS_TOKENS} of the last update", total(updates[1]) / count(updates[1])


def rollouts_of(rewards: torch.Tensor, micro: Rows) -> Iterator[tuple[str, str, float]]:
    """Of the rewards by function, and of the rows of the rollout batch."""
    for what, value in (
        ("weighted sum of the rewards", weighted(rewards)),
        ("sum of the rewards without weights", weighted(rewards, torch.ones(2))),
        ("reward before its weight", rewards[:, 0]), ("second reward", rewards[:, 1]),
    ):
        groups = value.view(-1, GROUP)
        present = value[~value.isnan()]
        yield f"mean of the {what}", "rollouts that have it", present.mean().item()
        yield f"mean of the {what}", "rollouts, None as 0", value.nan_to_num().mean().item()
        for dof in (0, 1):
            of = f"standard deviation of the {what}, n − {dof}"
            yield of, "rollouts that have it", present.std(correction=dof).item()
            yield of, "rollouts, None as 0", value.nan_to_num().std(correction=dof).item()
            within = groups.std(1, correction=dof).nanmean().item()
            yield of, "within a group; groups weigh the same", within
    groups = weighted(rewards).view(-1, GROUP)
    equal = torch.tensor([len(set(g[~g.isnan()].tolist())) == 1 for g in groups]).float()
    yield "share of groups whose rewards are all equal", "groups", equal.mean().item()
    zeros = groups.nan_to_num()
    equal = torch.tensor([len(set(g.tolist())) == 1 for g in zeros]).float()
    yield "share of groups whose rewards are all equal, None as 0", "groups", equal.mean().item()
    for name, of in (
        ("action", "action tokens of a response"),
        ("everything", "tokens of a response, with tool text"),
    ):
        lengths = torch.cat([m[name].sum(1) for m in micro]).float()
        ended = torch.cat([m["ended"] for m in micro])
        for whose, which in (("responses", lengths), ("responses that ended", lengths[ended])):
            yield f"mean {of}", whose, which.mean().item()
            yield f"fewest {of}", whose, which.min().item()
            yield f"most {of}", whose, which.max().item()
    cut = (~torch.cat([m["ended"] for m in micro])).float().mean().item()
    yield "share whose last token is neither end of text nor padding", "responses", cut
    long = torch.cat([m["everything"].sum(1) for m in micro]) >= LENGTH
    yield "share as long as max_completion_length", "responses", long.float().mean().item()


def engine(ranks: list[Rows]) -> dict[tuple[str, str], float]:
    """Of engine and trainer, of the ranks' rows of a rollout batch."""
    values: dict[tuple[str, str], float] = {}
    everything = concat(ranks)

    def log_r(m: dict[str, Any]) -> torch.Tensor:
        return m["old_per_token_logps"] - m["sampling_per_token_logps"]

    def flat(ms: Rows, x: Any) -> torch.Tensor:
        return torch.cat([x(m)[m["mask"] > 0] for m in ms])

    def whole(ms: Rows, x: Any) -> torch.Tensor:
        return torch.cat([(x(m) * m["mask"]).sum(1) for m in ms])

    for name, f in {
        "mean |log r|": torch.abs, "mean log r": lambda v: v, "mean −log r": lambda v: -v,
        "mean r": torch.exp, "mean r − 1 − log r (k3)": lambda v: v.exp() - 1 - v,
        "mean (log r)²/2 (k2)": lambda v: v**2 / 2, "mean |r − 1|": lambda v: (v.exp() - 1).abs(),
    }.items():
        values[(name, f"{LOSS_TOKENS}, of the rollout batch")] = flat(
            everything, lambda m, f=f: f(log_r(m))).mean().item()
        values[(name, f"{LOSS_TOKENS}, of a rank's rollout batch; ranks weigh the same")] = average(
            flat(ms, lambda m, f=f: f(log_r(m))).mean().item() for ms in ranks)
    values[("largest |log r|", "")] = flat(everything, lambda m: log_r(m).abs()).max().item()
    for name, weights in {
        "product of a response's r, 0 where above 3": [
            [w if w <= 3 else 0.0 for w in whole(ms, log_r).exp().tolist()] for ms in ranks],
        "product of a response's r, at most 3": [
            whole(ms, log_r).exp().clamp(max=3).tolist() for ms in ranks],
        "product of a response's r": [whole(ms, log_r).exp().tolist() for ms in ranks],
        "r of a token, at most 3": [flat(ms, log_r).exp().clamp(max=3).tolist() for ms in ranks],
    }.items():
        values[(f"smallest {name}", "")] = min(concat(weights))
        values[(f"largest {name}", "")] = max(concat(weights))
        values[(f"mean {name}", "responses")] = average(concat(weights))
        values[(f"mean {name}", "responses of a rank; ranks weigh the same")] = average(
            average(w) for w in weights)
    return values


def complete(events: list[tuple[str, Any]]) -> None:
    """What the candidates need, in each row."""
    for kind, m in events:
        if kind == "micro":
            m["everything"] = (m["completion_ids"] != 0).float()
            m["action"] = m["everything"] * (m["completion_ids"] != TOOL_TEXT)
            m["mask"] = m["completion_mask"] * m["tool_mask"]
            ends = m["everything"].sum(1).long() - 1
            m["ended"] = m["completion_ids"].gather(1, ends[:, None])[:, 0] == 1


def matches(lines: list[dict[str, Any]]) -> dict[str, list[list[str]]]:
    """Logged name → the candidates that equal it, in every line that has both."""
    names = sorted({n for line in lines for n, v in line["logged"].items()
                    if isinstance(v, (int, float)) and n not in ("step", "epoch", "step_time")})
    result: dict[str, list[list[str]]] = {}
    for name in names:
        with_it = [line for line in lines if name in line["logged"]]
        fit = [
            key for key in with_it[0]["values"]
            if all(
                key in line["values"] and math.isclose(
                    line["values"][key], line["logged"][name], rel_tol=TOLERANCE, abs_tol=TOLERANCE)
                for line in with_it
            )
        ]
        result[name] = [list(key) for key in fit]
    return result


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    trainer = make(folder)
    trainer.train()
    rank = trainer.accelerator.process_index
    torch.save(trainer.events, folder / f"rank{rank}.pt")
    trainer.accelerator.wait_for_everyone()
    if rank == 0:
        rows = [torch.load(folder / f"rank{r}.pt", weights_only=False)
                for r in range(trainer.accelerator.num_processes)]
        for events in rows:
            complete(events)
        lines = list(numbers(rows))
        print(json.dumps({
            "version": trl.__version__,
            "matches": matches(lines),
            "values": [line["logged"] for line in lines],
        }, ensure_ascii=False))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
