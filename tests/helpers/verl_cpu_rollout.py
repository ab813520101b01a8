"""verl's rollout engine `hf_cpu`: plain transformers in a Ray actor, for test_verl_live."""

from __future__ import annotations

import os
from typing import Any

import ray
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator


def server_name(replica: int) -> str:
    return f"hf_cpu_server_{replica}"


@ray.remote(num_cpus=0)
class Server:
    """Samples token by token from the weights that it was given last."""

    def __init__(self, path: str, seed: int, limit: int) -> None:
        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path)).eval()
        self._generator = torch.Generator().manual_seed(seed)
        self._end, self._limit, self._steps = self._model.config.eos_token_id, limit, 0

    async def update(self, weights: dict[str, Any], global_steps: int | None) -> None:
        state = {name: torch.from_numpy(array.copy()) for name, array in weights.items()}
        missing, unexpected = self._model.load_state_dict(state, strict=False)
        assert not unexpected, unexpected
        assert set(missing) <= {"lm_head.weight"}, missing
        self._steps = self._steps if global_steps is None else global_steps

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        ids, logps = list(prompt_ids), []
        temperature = sampling_params.get("temperature") or 1.0
        with torch.no_grad():
            while len(logps) < self._limit and (not logps or ids[-1] != self._end):
                logits = self._model(torch.tensor([ids])).logits[0, -1].float() / temperature
                table = torch.log_softmax(logits, -1)
                weights = table.exp().cumsum(0)
                point = torch.rand(1, generator=self._generator) * weights[-1]
                token = int(torch.searchsorted(weights, point))
                ids.append(token)
                logps.append(float(table[token]))
        return TokenOutput(
            token_ids=ids[len(prompt_ids) :], log_probs=logps, stop_reason="completed",
            extra_fields={"global_steps": self._steps},
        )

    async def set_global_steps(self, global_steps: int) -> None:
        self._steps = global_steps

    async def wake_up(self, *_: Any, **__: Any) -> None: ...

    sleep = abort_all_requests = resume_generation = clear_kv_cache = wake_up
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = wake_up
    wait_for_requests_to_drain = wake_up


class Replica(RolloutReplica):
    async def launch_servers(self) -> None:
        server = Server.options(name=server_name(self.replica_rank), max_concurrency=1000).remote(
            self.model_config.path, self.replica_rank, self.config.response_length
        )
        self.servers, self._server_handle = [server], server
        self._server_address = f"127.0.0.1:{self.replica_rank}"


class Adapter(BaseRollout):
    """In each worker of the actor: hands its weights to the server of its replica."""

    def __init__(self, *args: Any, replica_rank: int = -1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._replica = replica_rank if replica_rank >= 0 else int(os.environ["RANK"])

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
        state = {}
        async for name, tensor in ensure_async_iterator(weights):
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            state[name] = whole.detach().float().cpu().numpy()
        server = ray.get_actor(server_name(self._replica))
        await server.update.remote(state, global_steps)
