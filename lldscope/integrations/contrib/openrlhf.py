"""Recording from OpenRLHF (0.11), in a main script of your own:

    from lldscope.integrations.contrib.openrlhf import instrument

    instrument("runs/mine")
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")

OpenRLHF has no hook, so its PPOTrainer is replaced by a subclass before the script imports it. A
step of the run is one call of `train_step`; Δ is one more forward pass over its experiences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...importers.mapping import MEANINGS
from ...recording.batch import Batch, array, padded, reaches
from ...recording.columns import record
from ...recording.recorder import FailOpen, Recorder


def instrument(
    path: str | Path, *, correct: float = 1.0, tokens_every: int = 5, **about: Any
) -> None:
    """Record the training that `openrlhf.cli.train_ppo_ray` runs in this process's Ray.

    correct: the least reward of a correct response. tokens_every: steps between samples of texts
    and tokens; 0 is never. `**about` goes to `lldscope.Recorder`: name, group, config, resume.
    The actor raises RunExists or LldscopeError at its first step; later errors are logged once and
    never end the training. The synchronous trainer only.
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
    """A subclass that records. It is defined inside a function so that Ray pickles it by value for
    the actor's process, where this module may be missing."""

    class RecordingPPOTrainer(theirs):
        def fit(self, *args: Any, **kwargs: Any) -> Any:
            rule = f"reward at least {correct:g}"
            settings: dict[str, Any] = {"trainer": "openrlhf", "correct_rule": rule} | about
            self._recorder = Recorder(path, **settings)
            self._fail_open = FailOpen(self._recorder, "openrlhf")
            self._experiences: list[Any] = []
            with self._recorder:
                return super().fit(*args, **kwargs)

        def train_step(self, rollout_samples: Any, global_step: int) -> Any:
            original = self.experience_maker.make_experience_batch

            def make_experience_batch(*args: Any, **kwargs: Any) -> Any:
                experiences = original(*args, **kwargs)
                self._experiences = list(experiences)  # before they are balanced over the ranks
                return experiences

            self.experience_maker.make_experience_batch = make_experience_batch
            try:
                return super().train_step(rollout_samples, global_step)
            finally:
                self.experience_maker.make_experience_batch = original

        def ppo_train(self, global_steps: int) -> Any:
            """Records before the new weights go to vLLM, which may need the memory."""
            status = super().ppo_train(global_steps)
            with self._fail_open("a step"):
                batch = batch_of(
                    self._experiences, _score(self, self._experiences), step=global_steps,
                    size=self.args.rollout.n_samples_per_prompt, correct=correct,
                    decode=self.tokenizer.decode,
                )  # fmt: skip
                if "actor_grad_norm" in status:
                    self._recorder.scalars(
                        step=batch.step, name="grad_norm", value=float(status["actor_grad_norm"]),
                        estimator=MEANINGS["actor_grad_norm"].estimator,
                    )  # fmt: skip
                record(
                    self._recorder, batch, lr=status.get("actor_lr"), tokens_every=tokens_every,
                    seconds_record=self._fail_open.take,
                )  # fmt: skip
            return status

    return RecordingPPOTrainer


def batch_of(
    experiences: list[Any], post: list[Any], *, step: int, size: int, correct: float, decode: Any
) -> Batch:
    """The step's rollouts, in the order of the experiences.

    post: for each experience the log-probabilities after the update, of the shape of its
    `action_log_probs`, which leaves out the first token. size: responses of a group.
    """
    rows = [(e, i, post[k]) for k, e in enumerate(experiences) for i in range(len(e.sequences))]
    ids, masks, prompts = [], [], []
    columns: dict[str, list[np.ndarray]] = {}
    for e, i, after in rows:
        real = array(e.attention_mask[i]).astype(bool)
        tokens, policy_mask = (
            array(e.sequences[i])[real].tolist(),
            array(e.action_mask[i])[real[1:]],
        )
        first = (
            int(policy_mask.argmax()) if policy_mask.any() else len(policy_mask)
        )  # of the tokens after the first
        prompts.append(tokens[: first + 1])
        ids.append(tokens[first + 1 :])
        masks.append(policy_mask[first:])
        for name, values in (("old", e.action_log_probs), ("post", after),
                             ("behaviour", e.rollout_log_probs), ("advantages", e.advantages),
                             ("reference", e.base_action_log_probs)):  # fmt: skip
            if values is not None:
                columns.setdefault(name, []).append(array(values[i])[real[1:]][first:])
    rewards = np.concatenate([array(e.rewards).reshape(-1) for e in experiences])
    index = np.concatenate([np.array(e.index) for e in experiences])
    return Batch(
        step=step,
        mask=padded(masks),
        prompt_ids=prompts,
        completion_ids=ids,
        rewards=rewards,
        correct=reaches(rewards, correct),
        group_ids=index // size,
        response_ids=index,
        truncated=[bool(e.truncated[i]) for e, i, _ in rows]
        if all(e.truncated is not None for e in experiences)
        else None,
        decode=decode,
        **{name: padded(values) for name, values in columns.items()},  # type: ignore[arg-type]
    )


def _score(trainer: Any, experiences: list[Any]) -> list[Any]:
    """Log-probabilities under the present weights, by the call with which `make_experience`
    measures π_old."""
    maker, args = trainer.experience_maker, trainer.args
    inputs = {
        name: [getattr(e, name) for e in experiences]
        for name in ("sequences", "action_mask", "attention_mask")
    }
    if any(e.mm_train_inputs for e in experiences):
        inputs["mm_train_inputs_list"] = [e.mm_train_inputs for e in experiences]
    together = args.train.colocate_all or args.train.colocate_actor_ref
    refs = maker._dispatch_forward(trainer.actor_model_group, together, **inputs)
    return maker._flatten_results(refs, args.ds.ring_attn_size * args.ds.tensor_parallel_size)
