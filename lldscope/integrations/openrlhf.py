"""Recording from OpenRLHF (0.11), in a main script of your own:

    from lldscope.integrations.openrlhf import instrument

    instrument("runs/mine")
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")

OpenRLHF has no hook, so its PPOTrainer is replaced by a subclass of it before the script asks for
it. A step of the run is one call of `train_step`; Δ is one more forward pass over its experiences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..importers.mapping import MEANINGS
from ..recording.batch import Batch, array, padded
from ..recording.columns import record
from ..recording.guarded import FailOpen
from ..recording.recorder import Recorder


def instrument(
    path: str | Path, *, correct: float = 1.0, tokens_every: int = 5, **about: Any
) -> None:
    """Record the training that `openrlhf.cli.train_ppo_ray` makes in this process's Ray.

    correct: the least reward of a correct response. tokens_every: steps between samples of texts
    and tokens; 0 is never. `**about` goes to `lldscope.Recorder`: name, group, config, resume.
    The actor raises RunExists or LldscopeError at its first step; afterwards what goes wrong is
    logged once and never ends the training. The synchronous trainer only.
    """
    import ray
    from openrlhf.trainer import ppo_trainer

    theirs = ppo_trainer.PPOTrainer.__ray_actor_class__
    ppo_trainer.PPOTrainer = ray.remote(
        recording(theirs, Path(path).absolute(), correct, tokens_every, about)
    )


def recording(
    theirs: Any, path: Path, correct: float, tokens_every: int, about: dict[str, Any]
) -> Any:
    """A subclass that records. It is made here, not at the top of the module, so that Ray carries
    it to the actor's process whole."""

    class RecordingPPOTrainer(theirs):
        def fit(self, *args: Any, **kwargs: Any) -> Any:
            rule = f"reward at least {correct:g}"
            given: dict[str, Any] = {"trainer": "openrlhf", "correct_rule": rule} | about
            self._recorder = Recorder(path, **given)
            self._guard = FailOpen(self._recorder, "openrlhf")
            self._experiences: list[Any] = []
            with self._recorder:
                return super().fit(*args, **kwargs)

        def train_step(self, rollout_samples: Any, global_step: int) -> Any:
            original = self.experience_maker.make_experience_batch

            def make_experience_batch(*args: Any, **kwargs: Any) -> Any:
                made = original(*args, **kwargs)
                self._experiences = list(made)  # before they are balanced over the ranks
                return made

            self.experience_maker.make_experience_batch = make_experience_batch
            try:
                return super().train_step(rollout_samples, global_step)
            finally:
                self.experience_maker.make_experience_batch = original

        def ppo_train(self, global_steps: int) -> Any:
            """Before the new weights go to vLLM, which may need the memory."""
            status = super().ppo_train(global_steps)
            with self._guard("a step"):
                batch = batch_of(
                    self._experiences, _scored(self, self._experiences), step=global_steps,
                    size=self.args.rollout.n_samples_per_prompt, correct=correct,
                    decode=self.tokenizer.decode,
                )  # fmt: skip
                if "actor_grad_norm" in status:
                    self._recorder.scalars(
                        step=batch.step, name="grad_norm", value=float(status["actor_grad_norm"]),
                        estimator=MEANINGS["actor_grad_norm"].estimator,
                    )  # fmt: skip
                record(
                    self._recorder, batch, lr=status.get("actor_lr"),
                    with_tokens=bool(tokens_every) and batch.step % tokens_every == 0,
                    seconds_record=self._guard.take(),
                )  # fmt: skip
            return status

    return RecordingPPOTrainer


def batch_of(
    experiences: list[Any], post: list[Any], *, step: int, size: int, correct: float, decode: Any
) -> Batch:
    """experiences: each of some rows; `post` the log-probabilities after the update, each of the
    shape of its experience's `action_log_probs`, for the tokens after the first. size: responses
    of a group."""
    rows = [(e, i, post[k]) for k, e in enumerate(experiences) for i in range(len(e.sequences))]
    ids, masks, prompts = [], [], []
    found: dict[str, list[np.ndarray]] = {}
    for e, i, after in rows:
        real = array(e.attention_mask[i]).astype(bool)
        whole, own = array(e.sequences[i])[real].tolist(), array(e.action_mask[i])[real[1:]]
        first = int(own.argmax()) if own.any() else len(own)  # of the tokens after the first
        prompts.append(whole[: first + 1])
        ids.append(whole[first + 1 :])
        masks.append(own[first:])
        for name, values in (("old", e.action_log_probs), ("post", after),
                             ("behaviour", e.rollout_log_probs), ("advantages", e.advantages),
                             ("reference", e.base_action_log_probs)):  # fmt: skip
            if values is not None:
                found.setdefault(name, []).append(array(values[i])[real[1:]][first:])
    rewards = np.concatenate([array(e.rewards).reshape(-1) for e in experiences])
    index = np.concatenate([np.array(e.index) for e in experiences])
    measured: dict[str, Any] = {name: padded(values) for name, values in found.items()}
    return Batch(
        step=step,
        mask=padded(masks),
        prompt_ids=prompts,
        completion_ids=ids,
        rewards=rewards,
        correct=[None if r != r else bool(r >= correct) for r in rewards],
        group_ids=index // size,
        response_ids=index,
        truncated=[bool(e.truncated[i]) for e, i, _ in rows]
        if all(e.truncated is not None for e in experiences)
        else None,
        decode=decode,
        **measured,
    )


def _scored(trainer: Any, experiences: list[Any]) -> list[Any]:
    """Log-probabilities under the weights of now, by the call with which `make_experience` measures
    π_old."""
    maker, args = trainer.experience_maker, trainer.args
    given = {
        name: [getattr(e, name) for e in experiences]
        for name in ("sequences", "action_mask", "attention_mask")
    }
    if any(e.mm_train_inputs for e in experiences):
        given["mm_train_inputs_list"] = [e.mm_train_inputs for e in experiences]
    together = args.train.colocate_all or args.train.colocate_actor_ref
    refs = maker._dispatch_forward(trainer.actor_model_group, together, **given)
    return maker._flatten_results(refs, args.ds.ring_attn_size * args.ds.tensor_parallel_size)
