"""verl's own trainer on the CPU, for test_verl.py: its configuration, loop, advantages, loss and
metrics. What needs Ray or a GPU is stood in for by a few lines each: TransferQueue is a dict, the
workers are one model in this process, the rollouts are made up."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transfer_queue
from hydra import compose, initialize_config_module
from tokenizers import Tokenizer, models, pre_tokenizers
from transfer_queue import KVBatchMeta
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.losses import ppo_loss

TAGS = ["<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>"]
WORDS = ["<pad>", "<eos>", *TAGS, *"abcdefghijkl"]
ID = {word: i for i, word in enumerate(WORDS)}
LOSS_FIELDS = ("prompts", "responses", "response_mask", "old_log_probs", "advantages")
PROMPTS, SIZE, TEMPERATURE = 4, 3, 0.8


def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel(ID, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")


def model() -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256,
        bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )
    return Qwen2ForCausalLM(config)


def nested(rows: list[dict[str, Any]]) -> Any:
    """A TensorDict of nested tensors, also where all rows are of one length."""
    result = list_of_dict_to_tensordict(rows)
    for name, value in rows[0].items():
        if isinstance(value, torch.Tensor):
            result[name] = torch.nested.as_nested_tensor([r[name] for r in rows],
                                                        layout=torch.jagged)
    return result


class Store:
    """TransferQueue's key-value interface, in memory."""

    def __init__(self, monkeypatch: Any) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, dict[str, Any]] = {}
        for name in ("kv_batch_put", "kv_batch_get", "kv_clear"):
            monkeypatch.setattr(transfer_queue, name, getattr(self, name))

    def kv_batch_put(
        self, keys: list[str], partition_id: str, fields: Any = None, tags: Any = None
    ) -> KVBatchMeta:
        for name in fields.keys():  # noqa: SIM118  a TensorDict is no dict
            values = fields[name]
            rows = values.unbind() if isinstance(values, torch.Tensor) else list(values)
            for key, row in zip(keys, rows, strict=True):
                self.rows.setdefault(key, {})[name] = row
        for i, key in enumerate(keys):
            self.tags[key] = self.tags.get(key, {}) | (tags[i] if tags else {})
        return KVBatchMeta(
            keys=list(keys), tags=[self.tags[k] for k in keys], partition_id=partition_id
        )

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: Any = None) -> Any:
        rows = [self.rows[key] for key in keys]
        names = [n for n in rows[0] if select_fields is None or n in select_fields]
        return nested([{n: row[n] for n in names} for row in rows])

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            del self.rows[key], self.tags[key]


class Workers:
    """The worker group: one model, scored and updated as verl's TrainingWorker does it."""

    def __init__(self, store: Store, config: Any) -> None:
        self._dispatch_info = {"actor": [0]}
        self._store, self.model = store, model()
        self._actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-2)
        self.norms: list[float] = []
        self.gradients: list[torch.Tensor] = []
        self.states: list[dict[str, Any]] = []  # at the start, and after each update
        self.seen: list[tuple[dict[str, Any], ...]] = []  # the rows of each update
        self._keep()

    def _keep(self) -> None:
        self.states.append({k: v.clone() for k, v in self.model.state_dict().items()})

    def compute_log_prob(self, meta: KVBatchMeta) -> KVBatchMeta:
        with torch.no_grad():
            scores = [self._score(self._store.rows[k]) for k in meta.keys]
        names = ["log_probs", *(["entropy"] if meta.extra_info["calculate_entropy"] else [])]
        for key, score in zip(meta.keys, scores, strict=True):
            self._store.rows[key] |= {name: score[name] for name in names}
        return meta

    def _score(self, row: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Position t has the number of token t + 1, as in verl."""
        logits = self.model(row["input_ids"][None]).logits[0] / TEMPERATURE
        logps = torch.log_softmax(logits, -1)
        following = torch.roll(row["input_ids"], -1)
        return {
            "log_probs": logps.gather(1, following[:, None])[:, 0],
            "entropy": -(logps.exp() * logps).sum(-1),
        }

    def update_actor(self, meta: KVBatchMeta) -> Any:
        rows = [self._store.rows[k] for k in meta.keys]
        size = meta.extra_info["mini_batch_size"]
        metrics: dict[str, list[Any]] = {"grad_norm": [], "mfu": [], "lr": []}
        for start in range(0, len(rows), size):
            mini = rows[start : start + size]
            self.seen.append(tuple(dict(row) for row in mini))
            n_tokens = sum(int(row["response_mask"].sum()) for row in mini)
            self._optimizer.zero_grad()
            result: dict[str, list[Any]] = {}
            for i in range(0, size, 3):
                data = nested([{n: row[n] for n in LOSS_FIELDS} for row in mini[i : i + 3]])
                tu.assign_non_tensor(
                    data, dp_size=1, batch_num_tokens=n_tokens, global_batch_size=size
                )
                logps = [self._score(row)["log_probs"] for row in mini[i : i + 3]]
                output = {"log_probs": torch.nested.as_nested_tensor(logps, layout=torch.jagged)}
                loss, stats = ppo_loss(self._actor, output, data)
                loss.backward()
                for name, value in stats.items():
                    result.setdefault(name, []).append(value)
            gradient = torch.cat([p.grad.flatten() for p in self.model.parameters()])
            self.gradients.append(gradient.clone())
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item()
            self._optimizer.step()
            self._keep()
            self.norms.append(norm)
            metrics["grad_norm"].append(norm)
            metrics["mfu"].append(0.0)
            for name, values in result.items():
                metrics.setdefault(name, []).append(type(values[0]).aggregate_dp(values))
        metrics["lr"].append(3e-2)
        return {"metrics": metrics}


class Agents:
    """What the replay buffer gives: made-up rollouts with a search, tool text and an answer."""

    def __init__(self, store: Store) -> None:
        self._store, self.step = store, 0

    def sample(self, **_: Any) -> tuple[KVBatchMeta, dict[str, Any]]:
        random = torch.Generator().manual_seed(self.step)
        self.step += 1

        def words(n: int) -> list[int]:
            return torch.randint(len(TAGS) + 2, len(WORDS), (n,), generator=random).tolist()

        keys, fields, tags = [], [], []
        for p in range(PROMPTS):
            prompt = words(4)
            for s in range(SIZE):
                search = [ID["<search>"], *words(2 + s), ID["</search>"]]
                tool = [ID["<information>"], *words(3), ID["</information>"]]
                answer = [ID["<answer>"], *words(1 + p), ID["</answer>"], ID["<eos>"]]
                if s == 2:  # what the tool says of an action is all it gets
                    search, tool, answer = words(5), [], []
                response = torch.tensor(search + tool + answer)
                mask = torch.tensor([1] * len(search) + [0] * len(tool) + [1] * len(answer))
                score = torch.zeros(len(response))
                score[-1] = float((p + s) % 2) if p else 0.0
                acc = float(s == 1)
                keys.append(f"q{self.step}-{p}_{s}_0")
                fields.append({
                    "uid": f"q{self.step}-{p}", "prompts": torch.tensor(prompt),
                    "responses": response, "response_mask": mask, "rm_scores": score,
                    "input_ids": torch.cat([torch.tensor(prompt), response]),
                    "position_ids": torch.arange(len(prompt) + len(response)),
                    "loss_mask": mask, "num_turns": 2, "data_source": "nq",
                    "rollout_log_probs": -torch.ones(len(response)),
                    "extra_fields": {"reward_extra_info": {"acc": acc}},
                })
                tags.append({"prompt_len": len(prompt), "response_len": len(response),
                             "seq_len": len(prompt) + len(response), "min_global_steps": self.step,
                             "max_global_steps": self.step})
        batch = self._store.kv_batch_put(
            keys, "train", list_of_dict_to_tensordict(fields), tags=tags
        )
        return batch, {}


def make(folder: Path, monkeypatch: Any, *overrides: str, mode: str = "lldscope_sync") -> Any:
    """A trainer of PROMPTS · SIZE = 12 rollouts per step, in two updates of 9: verl adds 6 rows."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[
            f"trainer.v1.trainer_mode={mode}", "algorithm.adv_estimator=grpo",
            "actor_rollout_ref.actor.ppo_mini_batch_size=3", f"actor_rollout_ref.rollout.n={SIZE}",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3",
            f"actor_rollout_ref.rollout.temperature={TEMPERATURE}",
            "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.response_length=40",
            f"data.train_batch_size={PROMPTS}", "trainer.logger=[]", "trainer.total_epochs=1",
            "trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1",
            "trainer.experiment_name=tiny", *overrides,
        ])
    store = Store(monkeypatch)
    trainer = get_trainer_cls(mode)(config)
    nothing = SimpleNamespace(
        update_weights=lambda *a: None, sleep_replicas=lambda *a: None, get_n_gpus=lambda: 1,
        reward_loop_worker_handles=[1],
    )
    trainer.checkpoint_manager = trainer.resource_pool_manager = nothing
    trainer.reward_loop_manager = nothing
    trainer.tokenizer, trainer.replay_buffer = tokenizer(), Agents(store)
    trainer.actor_rollout_wg = Workers(store, config)
    trainer.global_steps, trainer.total_training_steps, trainer.steps_per_epoch = 0, 2, math.inf
    trainer.ref_in_actor, trainer.dump_executor = False, None
    for name in ("_reissue_inflight_prompts", "_shutdown_dump_executor", "_start_profiling",
                 "_stop_profiling", "_add_batch_to_generate"):
        setattr(trainer, name, lambda *a: None)
    return trainer
