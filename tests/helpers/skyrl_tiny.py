"""SkyRL's own RayPPOTrainer on the CPU: its loop, its batches, its advantages and checkpoints. In
the place of its workers, which need GPUs, is one small model in this process; rollouts are made
up."""

from __future__ import annotations

import asyncio
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import typing_extensions
from transformers import LlamaConfig, LlamaForCausalLM

typing.TypedDict = typing_extensions.TypedDict  # SkyRL's, which pydantic wants before Python 3.12

from skyrl.backends.skyrl_train.distributed.dispatch import WorkerOutput  # noqa: E402
from skyrl.train.config import SkyRLTrainConfig  # noqa: E402
from skyrl.train.trainer import RayPPOTrainer  # noqa: E402

GROUPS, SIZE = 4, 4


class Dispatch:
    """The calls of SkyRL's WorkerDispatch that its trainer makes, for one policy."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
            bos_token_id=None, eos_token_id=1, pad_token_id=0,
        )
        self.model = LlamaForCausalLM(config).eval()
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.saved: list[str] = []

    def logps(self, data: Any) -> torch.Tensor:
        """(B, response length) of the last tokens, as SkyRL's workers have them."""
        ids, attention = data["sequences"], data["attention_mask"]
        where = (attention.cumsum(1) - 1).clamp(min=0)
        logits = self.model(input_ids=ids, attention_mask=attention, position_ids=where).logits
        table = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        return table[:, -data.metadata["response_length"] :]

    @torch.no_grad()
    def forward(self, model: str, data: Any) -> WorkerOutput:
        assert model == "policy"
        rows = self.logps(data).tolist()
        return WorkerOutput(loss_fn_outputs=[{"logprobs": row} for row in rows], metrics={})

    def forward_from_staged(self, model: str, data: Any) -> WorkerOutput:
        return self.forward(model, data)

    def stage_data(self, model: str, data: Any, boundaries: list[tuple[int, int]]) -> list[Any]:
        return [data[a:b] for a, b in boundaries]

    def forward_backward_from_staged(self, model: str, data: Any) -> WorkerOutput:
        mask = data["loss_mask"]
        ratio = (self.logps(data) - data["action_log_probs"]).exp()
        loss = -(ratio * data["advantages"] * mask).sum() / mask.sum()
        loss.backward()
        return WorkerOutput(loss_fn_outputs=[], metrics={"policy_loss": loss.item()})

    def optim_step(self, model: str) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(norm)

    def save_checkpoint(self, model: str, path: str, tokenizer: Any) -> None:
        Path(path).mkdir(parents=True)
        torch.save(self.model.state_dict(), Path(path) / "model.pt")
        self.saved.append(path)

    async def save_weights_for_sampler(self) -> None: ...

    def get_lcm_dp_size(self) -> int:
        return 1

    def get_timing_metrics(self) -> dict[str, float]:
        return {}

    def get_node_ids(self) -> list[str]:
        return []

    def _nothing(self, *args: Any, **kwargs: Any) -> None: ...

    empty_cache = init_weight_sync_state = finalize_pending_saves = _nothing


class Generator:
    """Random rollouts; every second sum of tokens is right."""

    def __init__(self) -> None:
        self._random = torch.Generator().manual_seed(1)

    async def generate(self, batch: Any) -> dict[str, Any]:
        n = len(batch["prompts"])
        lengths = torch.randint(3, 8, (n,), generator=self._random).tolist()
        responses = [torch.randint(2, 40, (k,), generator=self._random).tolist() for k in lengths]
        return {
            "prompt_token_ids": batch["prompts"], "response_ids": responses,
            "rewards": [float(sum(r) % 2) for r in responses],
            "loss_masks": [[1, 1, 0] + [1] * (len(r) - 3) for r in responses],
            "stop_reasons": ["stop"] * n, "rollout_metrics": {}, "rollout_logprobs": None,
        }


class Questions(list):
    def collate_fn(self, items: Any) -> list[Any]:
        return list(items)


def train(folder: Path, *callbacks: Any, steps: int = 3) -> RayPPOTrainer:
    """A training of `steps` steps, two updates each; returns the trainer."""
    config = SkyRLTrainConfig()
    t = config.trainer
    t.train_batch_size = GROUPS
    t.policy_mini_batch_size = GROUPS // 2
    t.epochs = steps
    t.eval_interval = t.hf_save_interval = t.ckpt_interval = -1
    t.resume_mode = "none"
    t.ckpt_path = str(folder / "checkpoints")
    t.placement.colocate_all = False
    t.print_example_interval = 0
    t.enable_ray_gpu_monitor = False
    config.generator.inference_engine.enable_ray_prometheus_stats = False
    config.generator.n_samples_per_prompt = SIZE
    config.data.dataloader.num_workers = 0
    t.algorithm.advantage_estimator = "grpo"
    tokenizer = SimpleNamespace(pad_token_id=0, decode=lambda ids: " ".join(map(str, ids)))
    tracker = SimpleNamespace(log=lambda *a, **k: None, finish=lambda: None)
    questions = Questions(
        {"prompt": [5 + i] * (2 + i), "env_class": "none", "env_extras": {}, "uid": str(i)}
        for i in range(GROUPS)
    )
    trainer = RayPPOTrainer(config, tracker, tokenizer, questions, None, Generator())
    trainer.dispatch = Dispatch()
    for callback in callbacks:
        trainer.add_callback(callback)
    asyncio.run(trainer.train())
    return trainer
