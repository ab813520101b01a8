"""Recording from SkyRL's RayPPOTrainer (0.4): a callback, in SkyRL's own list of callbacks.

    trainer.add_callback(LldscopeCallback("runs/mine"))

A step of the run is a step of SkyRL. Δ is one more forward pass over the batch, the one by which
SkyRL measured π_old.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from skyrl.train.utils.callbacks import TrainingCallback

from ..recording.batch import Batch, array, numbered, padded, reaches
from ..recording.columns import record
from ..recording.recorder import FailOpen, Recorder
from ..recording.retention import RESPONSES, KeptResponse, Retention
from .common.alarms import DEFAULT_RULES, AlarmAction

TOKENS = ("sequences", "attention_mask")
BESIDES = ("rollout_expert_indices", "router_padding_mask", "rollout_sample_support",
           "pixel_values", "image_grid_thw")
"""What else a forward pass of SkyRL takes, where it is there."""


class LldscopeCallback(TrainingCallback):
    """Records a training in the run directory `path`.

    correct: the least total reward of a correct response. tokens_every: steps between samples of
    texts and tokens; 0 is never. retention: correct responses of a step that are kept and scored
    again after each of the next 16 (docs/research/retention.md), where SkyRL scores by tokens
    alone; 0 is none. on_alarm: "save" a checkpoint when one of the rules `alarms` fires, or
    save and "stop"; look_every: seconds between reads of the run, in a thread. `**about` goes
    to `lldscope.Recorder`: name, group, config.

    Raises RunExists or LldscopeError when the training begins; later errors are logged once and
    never end the training. A training resumed from a checkpoint resumes its run. A training that
    fails is closed as `stopped` when its process ends.
    """

    def __init__(
        self, path: str | Path, *, correct: float = 1.0, tokens_every: int = 5,
        retention: int = RESPONSES, on_alarm: str | None = None,
        alarms: Sequence[str] = DEFAULT_RULES, look_every: float = 5.0, **about: Any,
    ) -> None:
        self._path, self._correct, self._tokens_every = Path(path), correct, tokens_every
        self._retention, self._about = Retention(retention), about
        self._action = AlarmAction(on_alarm, alarms, look_every)
        self._recorder: Any = None
        self._rewards: tuple[np.ndarray, list[Any]] | None = None

    def on_train_start(self, trainer: Any, callback_input: Any, control: Any) -> None:
        resume = callback_input.global_step > 0 and (self._path / "run.json").exists()
        about: dict[str, Any] = {
            "trainer": "skyrl", "resume": resume,
            "correct_rule": f"total reward at least {self._correct:g}",
        }
        self._recorder = Recorder(self._path, **(about | self._about))
        self._fail_open = FailOpen(self._recorder, "skyrl")
        original = trainer.fwd_logprobs_values_reward

        def forward(batch: Any) -> Any:
            with self._fail_open("rewards"):  # SkyRL removes both before the callback
                self._rewards = array(batch["rewards"]).sum(1), list(batch.metadata["uids"])
            return original(batch)

        trainer.fwd_logprobs_values_reward = forward
        self._action.begin(self._recorder)

    def on_step_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
        step = callback_input.global_step - 1  # SkyRL counts from 1
        with self._fail_open("a step"):
            batch = self._batch(trainer, callback_input.batch, step)
            if all(callback_input.batch.get(name) is None for name in BESIDES):
                with self._fail_open("the likelihood of responses of earlier steps"):
                    self._retention.record(
                        self._recorder, batch,
                        lambda due: _score_kept(trainer, type(callback_input.batch), due),
                    )
            norm = (callback_input.metrics or {}).get("grad_norm")
            if norm is not None:
                self._recorder.scalars(
                    step=step, name="grad_norm", value=float(norm),
                    estimator="SkyRL: mean over the step's updates",
                )
            record(
                self._recorder, batch, tokens_every=self._tokens_every,
                seconds_record=self._fail_open.take,
            )

        self._action.act(control, step)
        if self._action.stopped is not None:  # SkyRL has no flag for it
            trainer.cfg.trainer.max_training_steps = callback_input.global_step

    def on_train_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
        reason = self._action.stopped
        self._recorder.close("finished" if reason is None else "stopped", reason)
        self._action.end()

    def _batch(self, trainer: Any, data: Any, step: int) -> Batch:
        """SkyRL aligns responses, and what was measured of them, at the right; `response_mask` is
        True where a row has a token."""
        if self._rewards is None:
            raise ValueError("SkyRL did not call fwd_logprobs_values_reward for this batch")
        rewards, uids = self._rewards
        self._rewards = None
        n = len(data["sequences"]) - data.metadata.get("pad_size", 0)
        real = array(data["response_mask"])[:n].astype(bool)

        def left(name: str) -> np.ndarray | None:
            return None if data.get(name) is None else aligned(array(data[name]))

        def aligned(values: np.ndarray) -> np.ndarray:
            return padded([values[i][real[i]] for i in range(n)])

        policy_mask = left("loss_mask")
        sequences, attention = array(data["sequences"]), array(data["attention_mask"]).astype(bool)
        ids = [sequences[i][attention[i]].tolist() for i in range(n)]
        lengths = real.sum(1)
        post = None
        if data.get("action_log_probs") is not None:
            post = aligned(array(self._post(trainer, data)))
        return Batch(
            step=step,
            mask=policy_mask,
            prompt_ids=[x[: len(x) - k] for x, k in zip(ids, lengths, strict=True)],
            completion_ids=[x[len(x) - k :] for x, k in zip(ids, lengths, strict=True)],
            rewards=rewards[:n],
            correct=reaches(rewards[:n], self._correct),
            group_ids=numbered(uids[:n]),
            advantages=left("advantages"),
            old=left("action_log_probs"),
            post=post,
            behaviour=left("rollout_logprobs"),
            reference=left("base_action_log_probs"),
            decode=trainer.tokenizer.decode,
        )

    def _post(self, trainer: Any, data: Any) -> Any:
        """Log-probabilities under the present weights, as `fwd_logprobs_values_reward` has them."""
        keys = [k for k in (*TOKENS, *BESIDES) if data.get(k) is not None]
        if "rollout_sample_support" in keys:
            keys.append("loss_mask")
        inputs = data.select(keys=keys, metadata_keys=["response_length"])
        return trainer._execute_forward_pass(
            "policy", inputs, key="logprobs",
            mini_batch_boundaries=data.metadata.get("policy_mini_batch_boundaries"),
        )


def _score_kept(trainer: Any, kind: Any, due: Sequence[KeptResponse]) -> list[np.ndarray]:
    """(T,) log π of each token of what is due, nats; 0 before the first that the policy wrote.
    kind: SkyRL's TrainingInputBatch."""
    if not due:
        return []
    # As many rows as the workers can share out; the first fills up.
    rows = [*due, *[due[0]] * (-len(due) % trainer.dispatch.get_lcm_dp_size())]
    width = max(len(r.ids) for r in rows)
    ids, attention = (torch.zeros(len(rows), width, dtype=torch.long) for _ in range(2))
    for i, r in enumerate(rows):
        ids[i, width - len(r.ids) :] = torch.from_numpy(r.ids.astype(np.int64))
        attention[i, width - len(r.ids) :] = 1
    inputs = kind({"sequences": ids, "attention_mask": attention})
    longest = max(len(r.ids) - int(r.mask.argmax()) for r in rows)
    inputs.metadata = {"response_length": longest}
    logps = array(
        trainer._execute_forward_pass("policy", inputs, key="logprobs", mini_batch_boundaries=None)
    )
    whole = np.pad(logps, ((0, 0), (width - longest, 0)))
    return [row[width - len(r.ids) :] for row, r in zip(whole, due, strict=False)]
