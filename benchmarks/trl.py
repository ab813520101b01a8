"""The same GRPO task in TRL's GRPOTrainer and here: one process, one thread, in turns.

A task both can do: one turn per rollout, 16 prompts × 8 rollouts, then 8 AdamW updates of 16
rollouts; with `--model smollm2`, a language model, 4 × 8 and 4 updates of 8. TRL's own train loop
runs, and a callback takes one of our steps after each of its rollout batches, so both meet the same
load of the machine.

What is equal: weights at the start, prompts, where a rollout ends, reward, plain sampling from the
full distribution, clip, token-mean loss per minibatch, AdamW, learning rate (so small that lengths
stay as they are), gradient clip, float32. Whether the losses are equal too is measured, on one
minibatch of TRL's.

What differs: TRL has its own log-probabilities of the sampled tokens from one more forward pass,
we keep those of the sampler; TRL left-pads, scores prompts too and always computes the entropy.
Our step is the whole `Trainer.step`, with a recorder and the re-score; TRL logs nothing.

TRL's settings are those of its choices that were fastest here: `generate` with a growing cache (a
static one took as long, continuous batching four times as long), no gradient checkpointing.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

import torch
from lldscope_trainer.builtin.world import World
from lldscope_trainer.config import load_config
from lldscope_trainer.data.datasets import Question
from lldscope_trainer.environment.protocol import CLOSING, Environment, Episode
from lldscope_trainer.policy.logprobs import action_logps, pad
from lldscope_trainer.policy.model import load_policy
from lldscope_trainer.rollout.tokens import Sampling, TokenProtocol
from lldscope_trainer.train import Trainer
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback

import lldscope
from lldscope.losses.objectives import policy_loss

from .policies import random_policy

PROMPTS, GROUP, UPDATES = 16, 8, 8
LR, WEIGHT_DECAY, CLIP, MAX_NORM = 1e-6, 0.01, 0.2, 1.0
WARM_UP = 2
SHARES: tuple[float | None, ...] = (None, 0.0, 0.25, 1.0)
RECORD_STEPS, RECORD_TURNS = 5, 5
TOLERANCE = 1e-4
MISSING = """TRL is not installed, so there is nothing to compare with. Install it beside the rest:
  .venv/bin/python -m pip install -e '.[bench]'"""


Seconds = tuple[float, float]


@dataclass(frozen=True)
class Case:
    """A policy, and how much it writes."""

    name: str
    layers: int | None  # None: the shipped policy
    tokens: int
    rounds: int
    device: str = "cpu"
    dtype: str = "float32"
    model: str = "tiny"
    prompts: int = PROMPTS
    updates: int = UPDATES
    warm_up: int = WARM_UP
    settings: tuple[str, ...] = ()
    """Of our trainer alone: what makes it faster without changing what it computes."""


CASES = (
    Case("the shipped policy, which ends its turn after 16 of 40 tokens", None, 40, 12),
    Case("4 layers of 128, random weights, up to 100 tokens", 4, 100, 6),
)

LANGUAGE_MODELS = {
    "smollm2": Case(
        "SmolLM2-135M-Instruct, up to 24 tokens", None, 24, 2, model="smollm2", prompts=4,
        updates=4, warm_up=1, settings=("shared_prefixes=true", "micro_tokens=1024"),
    )
}
"""By name: `python -m benchmarks trl --model NAME`."""


def main(model: str = "") -> None:
    if find_spec("trl") is None:
        print(MISSING)
        return
    warnings.filterwarnings("ignore", category=FutureWarning)
    if model:
        with tempfile.TemporaryDirectory() as folder:
            race(LANGUAGE_MODELS[model], Path(folder))
        return
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            race(case, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        record_cost(CASES[0], Path(folder))


def race(case: Case, folder: Path) -> None:
    """Both trainers in turns, then both losses on one minibatch."""
    model = case.model
    if case.layers:
        model = str(folder / "model")
        random_policy(128, case.layers).save(Path(model))
    questions = draw_questions(case.warm_up + case.rounds, case.prompts)
    ours = Ours(case, model, questions, folder)
    theirs, clock = their_trainer(case, model, questions, folder, ours)
    theirs.train()
    ours.recorder.close()
    report(case, clock, ours)
    compare_losses(theirs)


def record_cost(case: Case, folder: Path) -> None:
    """What `instrument` adds to TRL's step, in processor time: short trainings without and with it,
    in turns. A batch is recorded after its last update, so it is counted in the next one's time."""
    from lldscope.integrations.trl import instrument

    questions = draw_questions(RECORD_STEPS)
    seconds: dict[float | None, list[float]] = {share: [] for share in SHARES}
    for turn in range(RECORD_TURNS):
        for share, values in seconds.items():
            place = folder / f"{turn}-{share}"
            trainer, clock = their_trainer(case, "tiny", questions, place, None)
            if share is not None:
                instrument(trainer, place / "run", rescore_share=share)
            trainer.train()
            values.append(median(cpu for _, cpu in clock.seconds[1:]))
    alone = seconds.pop(None)
    for share, values in seconds.items():
        added = [y / x - 1 for x, y in zip(alone, values, strict=True)]
        print(
            f"| recording from TRL, rescore_share {share:g}, {case.name} | {median(added):+.1%} of "
            f"a {median(alone):.2f} s step ({min(added):+.1%} to {max(added):+.1%} in "
            f"{len(added)} pairs), processor time | |"
        )


def draw_questions(steps: int, prompts: int = PROMPTS) -> list[Question]:
    rng, world = Random(0), World.real()
    return [q for _ in range(steps) for q in world.questions(rng, prompts)]


def reward(text: str) -> float:
    """Cheap, the same for both, and now 0, now 1 for every policy."""
    return float(len(text) % 2)


class CountingRecorder(lldscope.Recorder):
    """Our recorder; `sampled` has how many tokens each step sampled, `seconds` what it took."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.sampled: list[int] = []
        self.seconds: list[dict[str, float]] = []

    def step(self, **values: Any) -> None:
        self.sampled.append(values["n_tokens"])
        parts = ("rollout", "update", "record")
        self.seconds.append({name: values[f"seconds_{name}"] for name in parts})
        super().step(**values)


class Listed:
    """Questions in the order of a list, so that both trainers ask the same."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self._questions = questions

    def draw(self, step: int, n: int, rng: Random) -> list[Question]:
        return list(self._questions[step * n : (step + 1) * n])


class OneTurnEpisode(Episode):
    @property
    def reward(self) -> float:
        return reward(self.turns[0])

    @property
    def correct(self) -> bool:
        return self.reward == 1


class OneTurn(Environment):
    """No turn with a tool, so the first generation is the last."""

    def __init__(self) -> None:
        super().__init__(None, max_turns=0)  # nobody gets to search

    def begin(self, question: Question, prompt: str) -> Episode:
        return OneTurnEpisode(question, prompt)


class Ours:
    """Our trainer on the task."""

    def __init__(self, case: Case, model: str, questions: list[Question], folder: Path) -> None:
        self.recorder = CountingRecorder(folder / "run")
        config = load_config(
            "tiny",
            [
                f"model={model}", f"turn_tokens={case.tokens}",
                f"device={case.device}", f"dtype={case.dtype}",
                f"prompts={case.prompts}", f"group_size={GROUP}", f"updates={case.updates}",
                f"lr={LR}", *case.settings,
                "warmup_steps=0", "top_p=1", "eval_questions=0", f"weight_decay={WEIGHT_DECAY}",
                f"clip_low={CLIP}", f"clip_high={CLIP}", f"grad_clip={MAX_NORM}",
            ],
        )
        self.trainer = Trainer(config, self.recorder)
        self.trainer._task.questions = Listed(questions)
        self.trainer._task.environment = OneTurn()
        self.seconds: list[Seconds] = []

    def step(self) -> None:
        start = now()
        self.trainer.step(len(self.seconds))
        self.seconds.append(since(start))


class Clock(TrainerCallback):
    """Times TRL from rollout batch to rollout batch, and lets us take a step in between."""

    def __init__(self, ours: Ours | None, updates: int) -> None:
        self._ours = ours
        self._updates = updates
        self._started = now()
        self.seconds: list[Seconds] = []
        self.tokens: list[int] = []
        self.parts: dict[str, list[float]] = {}

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._started = now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._updates == 0:
            self.seconds.append(since(self._started))
            if self._ours is not None:
                self._ours.step()
            self._started = now()

    def watch(self, owner: Any, name: str) -> None:
        """Time every call of a method."""
        method, seconds = getattr(owner, name), self.parts.setdefault(name, [])

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = method(*args, **kwargs)
            seconds.append(time.perf_counter() - start)
            return result

        setattr(owner, name, timed)


def their_trainer(
    case: Case, model: str, questions: list[Question], folder: Path, ours: Ours | None
) -> tuple[Any, Clock]:
    """TRL's trainer on the task, and its clock."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    policy = load_policy(model, torch.device(case.device))
    tokenizer = policy.tokenizer
    # Where the tags are single tokens, ending at them is ending where our turns end. A language
    # model that was not taught the protocol does not write them.
    tags = [ids for tag in CLOSING if len(ids := policy.encode(tag)) == 1]
    ends = [policy.eos_id, *(token for (token,) in tags)]
    policy.model.generation_config.eos_token_id = ends
    protocol = TokenProtocol(policy, Sampling())
    clock = Clock(ours, case.updates)

    def rewards(completion_ids: list[list[int]], **_: Any) -> list[float]:
        clock.tokens.append(sum(map(len, completion_ids)))
        return [reward(policy.decode(ids)) for ids in completion_ids]

    config = GRPOConfig(
        output_dir=str(folder / "trl"), use_cpu=case.device == "cpu", bf16=case.dtype == "bfloat16",
        gradient_checkpointing=False,
        per_device_train_batch_size=case.prompts * GROUP // case.updates,
        gradient_accumulation_steps=1, steps_per_generation=case.updates, num_iterations=1,
        num_generations=GROUP, max_steps=len(questions) // case.prompts * case.updates,
        max_completion_length=case.tokens,
        learning_rate=LR, lr_scheduler_type="constant", weight_decay=WEIGHT_DECAY,
        max_grad_norm=MAX_NORM, epsilon=CLIP, beta=0.0, loss_type="bnpo", scale_rewards="group",
        temperature=1.0, top_p=1.0, top_k=0, shuffle_dataset=False,
        logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=policy.model,
        args=config,
        processing_class=tokenizer,
        reward_funcs=rewards,
        train_dataset=Dataset.from_list(
            [{"prompt": policy.decode(protocol.prompt(q))} for q in questions]
        ),
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)
    clock.watch(trainer, "_generate_single_turn")
    clock.watch(trainer, "_generate_and_score_completions")
    return trainer, clock


def report(case: Case, clock: Clock, ours: Ours) -> None:
    a, b = (zip(*side.seconds[case.warm_up:], strict=True) for side in (ours, clock))
    (a_wall, a_cpu), (b_wall, b_cpu) = a, b
    rates = sum(ours.recorder.sampled[case.warm_up:]), sum(clock.tokens[case.warm_up:])
    print(
        f"| a GRPO step, {case.name} | {median(a_wall):.2f} s, {rates[0] / sum(a_wall):.0f} "
        f"tokens/s; TRL {median(b_wall):.2f} s, {rates[1] / sum(b_wall):.0f} tokens/s: "
        f"{ratios(a_wall, b_wall)} of its time; processor time {ratios(a_cpu, b_cpu)} | "
        "at most 0.7 |"
    )
    sampling, rollout = (median(seconds[case.warm_up:]) for seconds in clock.parts.values())
    steps = ours.recorder.seconds
    parts = {name: sum(s[name] for s in steps) / len(steps) for name in steps[0]}
    print(
        f"  of TRL's: sampling {sampling:.2f} s, old log-probabilities and rewards "
        f"{rollout - sampling:.2f} s, updates {median(b_wall) - rollout:.2f} s; of ours: sampling "
        f"{parts['rollout']:.2f} s, updates {parts['update']:.2f} s, recording "
        f"{parts['record']:.2f} s"
    )


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Median and middle half over pairs of steps."""
    pairs = [x / y for x, y in zip(ours, theirs, strict=True)]
    low, middle, high = quantiles(pairs, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f} in the middle half of {len(pairs)} pairs)"


def now() -> Seconds:
    """The clock on the wall, and the time the processor spent on this process: on a shared machine
    the former counts what others do. A GPU has done by then what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def since(start: Seconds) -> Seconds:
    wall, cpu = now()
    return wall - start[0], cpu - start[1]


def compare_losses(theirs: Any) -> None:
    """Loss and gradient of both on the same minibatch and weights, far enough off-policy that the
    clip acts."""
    inputs = dict(theirs._buffered_inputs[-1])
    generator = torch.Generator().manual_seed(0)
    old = inputs["old_per_token_logps"]
    inputs["old_per_token_logps"] = old + 0.3 * torch.randn(old.shape, generator=generator)
    model = theirs.model
    loss = theirs.compute_loss(model, inputs)
    their_loss, their_gradient = loss.item(), gradient(model, loss)

    ids, mask, old = unpadded(inputs)
    new = action_logps(model, ids, mask)
    policy = policy_loss(new, old, mask, inputs["advantages"], clip_low=CLIP, clip_high=CLIP)
    our_loss, our_gradient = policy.loss.item(), gradient(model, policy.loss)

    apart = abs(our_loss - their_loss)
    norms = our_gradient.norm().item(), their_gradient.norm().item()
    error = ((our_gradient - their_gradient).norm() / their_gradient.norm()).item()
    print(
        f"  on one minibatch: loss {our_loss:.7f} and TRL's {their_loss:.7f}, gradient norm "
        f"{norms[0]:.6f} and {norms[1]:.6f}, gradients {error:.0e} apart; "
        f"{policy.clipped.sum() / mask.sum():.0%} of the tokens clipped"
    )
    if max(apart, abs(norms[0] / norms[1] - 1), error) > TOLERANCE:
        raise SystemExit("The two trainers do not compute the same loss: the times mean nothing")


def gradient(model: Any, loss: Tensor) -> Tensor:
    """All gradients of `loss` in one vector."""
    model.zero_grad()
    loss.backward()
    whole = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return whole


def unpadded(inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, action mask, old log-probabilities) of TRL's minibatch, in our layout."""
    ids, mask, old = [], [], []
    for prompt, keep, completion, own_mask, logps in zip(
        *(
            inputs[name]
            for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask",
                         "old_per_token_logps")
        ),
        strict=True,
    ):
        before, after = prompt[keep.bool()].tolist(), completion[own_mask.bool()].tolist()
        ids.append(before + after)
        mask.append([0] * len(before) + [1] * len(after))
        old.append([0.0] * len(before) + logps[own_mask.bool()].tolist())
    device = torch.device("cpu")
    return pad(ids, 0, device), pad(mask, 0, device), pad(old, 0.0, device)


if __name__ == "__main__":
    main()
