"""At an alarm, the update of the last rollout batch again in other ways, inside TRL's training.

Before each rollout batch is trained on, weights and optimizer state are copied to the host's
memory. At an alarm they come back, TRL's own loss and optimizer make the batch's updates once for
each change, and once more on batches that the same weights draw anew. Then everything is put back:
weights, optimizer, random numbers, TRL's counters and metrics. The training goes on as if nothing
had happened, to the last bit.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.errors import LldscopeError
from ...core.memory import free_memory
from ...losses.objectives import kl_k3
from ...recording.blame_answer import AS_IT_WAS, HALF_RATE, POSITIVE, BlameAnswer, Result
from ...recording.rescore import mixed_groups
from ..common.hooks import arguments
from .llds import Regularizer
from .rollouts import Correct, Inputs, Rewarded, Rollouts, action_mask, rewarded_samples
from .scoring import score
from .seams import METHODS, REWARDED

DRAWS = 8
ROWS = "lldscope_draw_rows"  # added to TRL's inputs: the rows of a micro-batch before its shuffle
# What TRL's own methods count or keep while a batch is sampled or trained on.
BOOKS = ("_metrics", "_logs", "_step", "_buffered_inputs", "_current_train_step_time",
         "current_gradient_accumulation_steps")


@dataclass(frozen=True)
class Change:
    """`leave_out` names the rollouts that give no policy gradient: negative, positive, unlikely;
    `llds` adds LLDS with this gate, `rate` scales the learning rate, `once` makes one update of a
    batch's. Those with `repeat` are made on new batches, too."""

    name: str
    leave_out: str = ""
    llds: str = ""
    rate: float = 1.0
    once: bool = False
    beta: float | None = None
    repeat: bool = False


@dataclass
class _Draw:
    """A rollout batch: TRL's micro-batches, its inputs before the shuffle, and of each row the log
    π of its tokens (N, T) by the weights that sampled."""

    micro_batches: list[Inputs]
    inputs: Inputs
    correct: Sequence[bool | None]
    old: Tensor
    rows: str  # the key under which a micro-batch names its rows


class _State:
    """A trainer's trainable weights, and its optimizer's state and rates, in the host's memory."""

    def __init__(self, trainer: Any) -> None:
        self._optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        self._weights = [(p, _copy(p.detach())) for p in trainer.model.parameters()
                         if p.requires_grad]
        self._groups = [{k: v for k, v in g.items() if k != "params"}
                        for g in self._optimizer.param_groups]
        self._state = {p: {k: _copy(v) for k, v in s.items()}
                       for p, s in self._optimizer.state.items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Put all of it back in place."""
        for parameter, value in self._weights:
            parameter.copy_(value)
            parameter.grad = None
        for group, values in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(values)
        for parameter in list(self._optimizer.state):
            if parameter not in self._state:
                del self._optimizer.state[parameter]
        for parameter, values in self._state.items():
            now = self._optimizer.state[parameter]
            for name, value in values.items():
                if isinstance(value, Tensor) and isinstance(now.get(name), Tensor):
                    now[name].copy_(value)
                else:
                    now[name] = _copy(value)

    def set_rates(self, share: float) -> None:
        """Set the learning rates to a share of what they were."""
        for group, values in zip(self._optimizer.param_groups, self._groups, strict=True):
            group["lr"] = values["lr"] * share


def _copy(value: Any) -> Any:
    return value.to("cpu", copy=True) if isinstance(value, Tensor) else copy.deepcopy(value)


class Blamer:
    """`scorer` is the trainer's own scoring method, `judge` says which rollouts are correct, and
    `gate` and `coefficient` are those of the LLDS that the training has, if it has one. Made before
    the trainer's methods are replaced. Raises LldscopeError where an update cannot be repeated."""

    def __init__(
        self, trainer: Any, scorer: Callable[..., Any], judge: Correct, gate: str | None,
        coefficient: float,
    ) -> None:
        _check(trainer)
        self._trainer, self._scorer, self._judge = trainer, scorer, judge
        self._gate, self._coefficient = gate, coefficient
        self._originals = {name: getattr(trainer, name) for name in METHODS if name != "train"}
        self._prepare = trainer._prepare_inputs
        self._before: _State | None = None
        self._rollouts: Rollouts | None = None
        self._prompts: Any = None

    def keep(self, prompts: Any, rollouts: Rollouts) -> None:
        """Copy what the updates on a new rollout batch begin with; `prompts` is what TRL sampled it
        from."""
        self._before = None  # the memory of the copy before
        self._before, self._rollouts, self._prompts = _State(self._trainer), rollouts, prompts

    def explain(self, run: Path, step: int) -> BlameAnswer | None:
        """Run the updates of the last rollout batch again, and leave the answer in the run's
        folder; None where the last batch is not that of the step."""
        rollouts = self._rollouts
        if self._before is None or rollouts is None or rollouts.step != step:
            return None
        with self._aside():
            results = self._experiment(rollouts)
        answer = BlameAnswer(str(run), step, None, DRAWS, {}, {}, results)
        answer.write(run)
        return answer

    def _changes(self) -> list[Change]:
        changes = [
            Change(AS_IT_WAS, repeat=True),
            Change(POSITIVE, "negative", repeat=True),
            Change("only negative advantages", "positive", repeat=True),
            Change("without unlikely negatives", "unlikely"),
            Change(HALF_RATE, rate=0.5, repeat=True),
        ]
        t = self._trainer
        if t.beta:
            changes.append(Change("without KL", beta=0.0))
        if self._per_batch > t.args.gradient_accumulation_steps:
            changes.append(Change("one update instead of many", once=True))
            gates = ("off",) if self._gate else ("action",)
            name = "without LLDS" if self._gate else "LLDS, action gate"
            changes += [Change(name, llds=gate, repeat=True) for gate in gates]
        return changes

    @property
    def _per_batch(self) -> int:
        return int(self._trainer.args.steps_per_generation * self._trainer.num_iterations)

    def _experiment(self, rollouts: Rollouts) -> list[Result]:
        assert self._before is not None
        self._before.restore()
        record = _Draw(
            self._trainer._buffered_inputs, rollouts.inputs, rollouts.samples.correct,
            self._score(rollouts.inputs), "lldscope_rows",
        )
        changes = self._changes()
        results = [Result(c.name, self._measure(c, record)) for c in changes]
        deltas: dict[str, list[float | None]] = {c.name: [] for c in changes}
        for _ in range(DRAWS):
            self._before.restore()
            draw = self._draw()
            for change in changes:
                if change.repeat:
                    deltas[change.name].append(self._measure(change, draw)["delta_correct"])
        for result in results:
            result.compare(deltas[result.name], deltas[AS_IT_WAS])
        return results

    def _draw(self) -> _Draw:
        """The same prompts, sampled anew by the weights as they are."""
        t = self._trainer
        call: list[Rewarded] = []
        output: Inputs = {}

        def rewards(*args: Any, **kwargs: Any) -> Tensor:
            original = self._originals["_calculate_rewards"]
            per_function: Tensor = original(*args, **kwargs)
            call.append((arguments(original, REWARDED, args, kwargs), per_function))
            return per_function

        def generate(*args: Any, **kwargs: Any) -> Inputs:
            batch = self._originals["_generate_and_score_completions"](*args, **kwargs)
            output.update(batch)
            rows = torch.arange(len(batch["completion_ids"]), device=batch["completion_ids"].device)
            return dict(batch) | {ROWS: rows}

        t._calculate_rewards, t._generate_and_score_completions = rewards, generate
        t._step, t._buffered_inputs = 0, None
        self._prepare(self._prompts)
        samples = rewarded_samples(t, call[-1], len(output["completion_ids"]), self._judge)
        return _Draw(t._buffered_inputs, output, samples.correct, self._score(output), ROWS)

    def _score(self, inputs: Inputs) -> Tensor:
        return score(self._scorer, self._trainer, inputs)[0].float()

    def _measure(self, change: Change, draw: _Draw) -> dict[str, float | None]:
        """Make the batch's updates with the change; mean Δ of the correct responses of mixed
        groups, nats, and KL(π_old ‖ π_new), nats a token."""
        self._update(change, draw)
        mask, post = action_mask(draw.inputs), self._score(draw.inputs)
        delta = ((post - draw.old) * mask).double().sum(1)  # (N,)
        groups = [i // self._trainer.num_generations for i in range(len(delta))]
        correct = [bool(c) for c in draw.correct]
        rows = [r for g in mixed_groups(correct, groups).values() for r in g if correct[r]]
        kl = float(kl_k3(draw.old, post, mask).sum()) / max(1, int(mask.sum()))
        return {"delta_correct": float(delta[rows].mean()) if rows else None, "kl": kl}

    def _update(self, change: Change, draw: _Draw) -> None:
        """What TRL does with a batch: its loss of each micro-batch, and a step of the optimizer
        after every `gradient_accumulation_steps`."""
        t, n = self._trainer, len(draw.micro_batches)
        window = n if change.once else t.args.gradient_accumulation_steps
        assert self._before is not None
        self._before.restore()
        weights = _kept_rows(change.leave_out, draw)
        t._buffered_inputs = [_weighted(x, weights, draw.rows) for x in draw.micro_batches]
        t._prepare_inputs = lambda _: t._buffered_inputs[t._step % n]
        t._step, t.current_gradient_accumulation_steps = 0, window
        gate = (self._gate or "off") if not change.llds else change.llds
        llds = None if gate == "off" else Regularizer(t, gate, self._coefficient)
        beta, t.beta = t.beta, t.beta if change.beta is None else change.beta
        try:
            with self._with_llds(llds):
                for k in range(n if change.once else self._per_batch):
                    t.training_step(t.model_wrapped, {}, None)
                    if (k + 1) % window == 0:
                        self._step_optimizer(change.rate * self._schedule(k // window))
                        if llds is not None:
                            llds.next_update()
        finally:
            t.beta = beta

    def _schedule(self, update: int) -> float:
        """The recorded learning rate of an update of the batch as a share of the first one's."""
        rates = [u.lr or 0.0 for u in self._rollouts.updates] if self._rollouts else []
        return rates[update] / rates[0] if update < len(rates) and rates[0] else 1.0

    def _step_optimizer(self, rate: float) -> None:
        t = self._trainer
        assert self._before is not None
        self._before.set_rates(rate)
        parameters = [p for p in t.model.parameters() if p.requires_grad]
        if t.args.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(parameters, t.args.max_grad_norm)
        getattr(t.optimizer, "optimizer", t.optimizer).step()
        for parameter in parameters:
            parameter.grad = None

    @contextmanager
    def _with_llds(self, llds: Regularizer | None) -> Iterator[None]:
        """TRL's loss plus LLDS, from the log-probabilities that the loss was computed from."""
        if llds is None:
            yield
            return
        t, scores = self._trainer, list[Tensor]()
        scoring, loss = self._originals["_get_per_token_logps_and_entropies"], t.compute_loss

        def keep_scores(*args: Any, **kwargs: Any) -> Any:
            result = scoring(*args, **kwargs)
            scores.append(result[0])
            return result

        def with_llds(model: Any, inputs: Inputs, *args: Any, **kwargs: Any) -> Any:
            scores.clear()
            value = loss(model, inputs, *args, **kwargs)
            return value + llds(inputs, scores[0]).loss

        t._get_per_token_logps_and_entropies, t.compute_loss = keep_scores, with_llds
        try:
            yield
        finally:
            t._get_per_token_logps_and_entropies, t.compute_loss = scoring, loss

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """TRL's own methods in the place of the recording ones; afterwards all is as it was."""
        t = self._trainer
        methods = {name: vars(t).get(name) for name in (*self._originals, "_prepare_inputs")}
        books = {name: copy.deepcopy(getattr(t, name)) for name in BOOKS
                 if hasattr(t, name) and name != "_buffered_inputs"}
        buffered, state = t._buffered_inputs, copy.copy(vars(t.state))
        numbers = (random.getstate(), np.random.get_state(), torch.get_rng_state(),
                   torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])
        after = _State(t)
        for name, method in self._originals.items():
            setattr(t, name, method)
        try:
            yield
        finally:
            after.restore()
            for name, method in methods.items():
                vars(t).pop(name, None) if method is None else setattr(t, name, method)
            for name, value in books.items():
                setattr(t, name, value)
            t._buffered_inputs = buffered
            vars(t.state).update(state)
            random.setstate(numbers[0])
            np.random.set_state(numbers[1])
            torch.set_rng_state(numbers[2])
            if numbers[3]:
                torch.cuda.set_rng_state_all(numbers[3])


def _kept_rows(leave_out: str, draw: _Draw) -> Tensor | None:
    """(N,): 0 for rollouts whose policy gradient is left out, 1 for others; None for all."""
    if not leave_out:
        return None
    advantages = draw.inputs["advantages"]
    advantages = advantages if advantages.dim() == 1 else advantages.sum(1)
    out = advantages > 0 if leave_out == "positive" else advantages < 0
    if leave_out == "unlikely" and out.any():
        mask = action_mask(draw.inputs)
        mean = (draw.old * mask).sum(1) / mask.sum(1).clamp(min=1)  # nats a token
        out = out & (mean < mean[out].quantile(0.5))
    return (~out).float()


def _weighted(inputs: Inputs, weights: Tensor | None, rows: str) -> Inputs:
    """A micro-batch whose advantages are 0 where `weights` is; what it divides by stays."""
    if weights is None:
        return inputs
    factor = weights[inputs[rows]]
    advantages = inputs["advantages"]
    return inputs | {
        "advantages": advantages * (factor if advantages.dim() == 1 else factor[:, None])
    }


def _check(trainer: Any) -> None:
    """Refuse what cannot be repeated in this process, before the training begins."""
    args, accelerator = trainer.args, trainer.accelerator
    per_batch = int(args.steps_per_generation * trainer.num_iterations)
    reasons = {
        "several processes": accelerator.num_processes > 1,
        "DeepSpeed": getattr(trainer, "is_deepspeed_enabled", False),
        "use_vllm=True, whose engine has weights of its own": getattr(trainer, "use_vllm", False),
        "fp16, whose loss scale changes": getattr(accelerator, "scaler", None) is not None,
        "an optimizer step over several rollout batches":
            per_batch % args.gradient_accumulation_steps != 0,
    }
    if reason := next((words for words, holds in reasons.items() if holds), None):
        raise LldscopeError(f"blame=True cannot run an update again with {reason}: leave it out.")
    sizes = [p.numel() * p.element_size() for p in trainer.model.parameters() if p.requires_grad]
    # Weights and AdamW's two moments, from before the batch and from after it.
    needed, free = 2 * 3 * sum(sizes), free_memory()
    if needed > free:
        raise LldscopeError(
            f"blame=True copies weights and optimizer state twice, {needed / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} GiB of memory are free: leave it out, or train with LoRA."
        )
