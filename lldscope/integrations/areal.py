"""Recording from AReaL's actor (AReaL 1.0): one line before its training loop.

    from lldscope.integrations.areal import instrument

    recorder = instrument(actor, "runs/mine")  # a PPOActor, or an engine such as FSDPPPOActor

A step of the run is one call of `ppo_update`, which follows one of `compute_advantages`. Not
recorded: importance ratios and clipped tokens, which AReaL computes inside its loss; evaluations.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..core.errors import LldscopeError
from ..recording.batch import Batch, array, padded, reaches
from ..recording.columns import record
from ..recording.recorder import FailOpen, Recorder
from ..recording.retention import RESPONSES, KeptResponse, Retention
from .common.hooks import can_follow, replace

METHODS = ("compute_logp", "compute_advantages", "ppo_update")
Data = list[dict[str, Any]]


def instrument(
    actor: Any, path: str | Path, *, correct: float = 1.0, tokens_every: int = 5,
    decode: Any = None, retention: int = RESPONSES, **about: Any,
) -> Recorder:
    """Record the updates of `actor` from now on in the run directory `path`; returns the recorder,
    which a `with` closes.

    correct: the least reward of a correct response. decode: token ids to text; None takes the
    actor's tokenizer, if it has one. retention: correct responses of a step that are kept and
    scored again after each of the next 16 (docs/research/retention.md), in one process only; 0 is
    none. `**about` goes to `lldscope.Recorder`: name, group, config, resume. Δ is one more pass
    after the update, in all rollouts; π_old is AReaL's `prox_logp` where it computes one, else
    a pass before the update.

    Raises LldscopeError where the actor lacks what recording needs, or its data lie on other
    machines (its controllers); RunExists for a run in `path`. After that it never ends a training.
    """
    missing = [m for m in METHODS if not callable(getattr(actor, m, None))]
    if missing or not can_follow(actor.compute_logp, ()) or "Controller" in type(actor).__name__:
        raise LldscopeError(
            f"{type(actor).__name__} is no actor of AReaL 1.0 in this process"
            + (f": it has no {', '.join(missing)}" if missing else "")
        )
    import areal

    settings = {
        "trainer": f"areal {getattr(areal, '__version__', '1.x')}",
        "correct_rule": f"reward at least {correct:g}",
    }
    recorder = Recorder(path, **settings | about)
    tokenizer = getattr(actor, "tokenizer", None)
    observer = Observer(
        actor, recorder, correct, tokens_every, decode or getattr(tokenizer, "decode", None),
        retention,
    )
    replace(actor, "compute_advantages", observer.advantages)
    replace(actor, "ppo_update", observer.update)
    engine = getattr(actor, "engine", actor)
    if callable(getattr(engine, "train_batch", None)):
        replace(engine, "train_batch", observer.train_batch)
    return recorder


class Observer:
    """A method that takes an `original` replaces the actor's and returns what it returns."""

    def __init__(
        self, actor: Any, recorder: Recorder, correct: float, tokens_every: int, decode: Any,
        retention: int,
    ) -> None:
        self._actor, self._recorder = actor, recorder
        self._correct, self._tokens_every, self._decode = correct, tokens_every, decode
        self._fail_open = FailOpen(recorder, "areal")
        self._score = actor.compute_logp
        self._retention = Retention(retention if _alone() else 0)
        self._step = 0
        self._before: Data = []
        self._stats: list[dict[str, Any]] = []
        self._fail_open.missing(
            "importance ratios and clipped tokens", "AReaL computes them inside its loss"
        )
        if retention and not _alone():
            self._fail_open.missing(
                "retention", "with several processes, each would have to score as many responses"
            )

    def advantages(self, original: Any, data: Data, *args: Any, **kwargs: Any) -> Any:
        """Before AReaL writes over them: rewards, and log-probabilities of the engine."""
        before: list[dict[str, Any]] = []
        with self._fail_open("rewards"):
            before = [
                {
                    "rewards": array(d["rewards"]).copy(),
                    "behaviour": np.roll(array(d["logprobs"]), -1, axis=-1),
                }
                for d in data
            ]
        result = original(data, *args, **kwargs)
        self._before = before
        return result

    def train_batch(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        stats = original(*args, **kwargs)
        with self._fail_open("an update"):
            self._stats.append(dict(stats))
        return stats

    def update(self, original: Any, data: Data, *args: Any, **kwargs: Any) -> Any:
        step, self._step, self._stats = self._step, self._step + 1, []
        groups, old = None, None
        with self._fail_open("a step"):
            groups = [dict(d) for d in data]  # AReaL takes columns out of its own
            asks = getattr(self._actor.config, "should_compute_prox_logp", None)
            recomputed = asks is not None and asks()
            old = [d["prox_logp"] for d in groups] if recomputed else self._logps(groups)
        start = time.perf_counter()
        result = original(data, *args, **kwargs)
        seconds = time.perf_counter() - start
        if groups is not None and old is not None:
            with self._fail_open("a step"):
                self._record(step, groups, old, self._logps(groups), seconds)
        return result

    def _logps(self, data: Data) -> list[Any]:
        """For each group (N, L): at position t the log-probability of token t + 1."""
        names = ("input_ids", "attention_mask", "loss_mask")
        logps = self._score([{n: d[n] for n in names} for d in data])
        return [s.detach() for s in logps]

    def _record(self, step: int, data: Data, old: Any, post: Any, seconds: float) -> None:
        norms = [float(s["grad_norm"]) for s in self._stats if "grad_norm" in s]
        rates = [float(s["lr"]) for s in self._stats if "lr" in s]
        batch = batch_of(
            data, old, post, self._before, step=step, correct=self._correct, decode=self._decode
        )
        with self._fail_open("the likelihood of responses of earlier steps"):
            self._retention.record(self._recorder, batch, self._score_kept)
        record(
            self._recorder, batch, tokens_every=self._tokens_every, seconds_update=seconds,
            updates={"grad_norm": norms} if norms else None, lr=rates[-1] if rates else None,
            seconds_record=self._fail_open.take,
        )

    def _score_kept(self, due: Sequence[KeptResponse]) -> list[np.ndarray]:
        """(T,) log π of each token of what is due, nats."""
        logps = self._logps([_alone_in_group(r) for r in due]) if due else []
        return [np.concatenate([[0.0], array(x)[0, :-1]]) for x in logps]


def _alone() -> bool:
    """Whether no other process has to score as many responses at the same time."""
    return not dist.is_initialized() or dist.get_world_size() == 1


def _alone_in_group(response: KeptResponse) -> dict[str, Any]:
    """A group of AReaL's of one sequence; its mask is shifted, as `compute_advantages` does it."""
    ids = torch.from_numpy(response.ids).long()[None]
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "loss_mask": torch.from_numpy(np.roll(response.mask, -1))[None],
    }


def batch_of(
    data: Data, old: Any, post: Any, before: Data, *, step: int, correct: float, decode: Any
) -> Batch:
    """The step's rollouts: each dictionary is a group. All but ids and attention are shifted: at
    position t they are token t + 1's."""
    rows: dict[str, list[Any]] = {}
    groups = []
    for k, group in enumerate(data):
        tables = {
            "mask": group["loss_mask"], "old": old[k], "post": post[k],
            "advantages": group["advantages"], "behaviour": before[k]["behaviour"],
        }
        arrays = {name: array(t) for name, t in tables.items() if t is not None}
        for i, ids in enumerate(array(group["input_ids"])):
            n = int(array(group["attention_mask"][i]).sum())
            policy_mask = arrays["mask"][i][: n - 1].astype(bool)
            first = int(policy_mask.argmax()) if policy_mask.any() else n - 1
            rows.setdefault("prompt_ids", []).append(ids[: first + 1].tolist())
            rows.setdefault("completion_ids", []).append(ids[first + 1 : n].tolist())
            for name, table in arrays.items():
                rows.setdefault(name, []).append(table[i][first : n - 1])
            groups.append(k)
    total = np.concatenate([b["rewards"] for b in before]).astype(float)
    fields: dict[str, Any] = {n: padded(rows[n]) for n in arrays if n != "mask"}
    return Batch(
        step=step, mask=padded(rows["mask"]).astype(bool), prompt_ids=rows["prompt_ids"],
        completion_ids=rows["completion_ids"], rewards=total, correct=reaches(total, correct),
        group_ids=np.array(groups), decode=decode, **fields,
    )
