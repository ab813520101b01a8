"""What a CPU has in place of a GPU and of vLLM for a verl training that is verl's own otherwise.

verl loads this module in each of its processes (`VERL_USE_EXTERNAL_MODULES=verl_cpu`). It registers
the platform `cpu` and the rollout engine `hf_cpu`: one Ray actor per replica that samples by plain
`transformers` and gets the actor's weights after each update.
"""

from __future__ import annotations

import types
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform import PlatformRegistry, set_platform
from verl.plugin.platform.platform_cuda import PlatformCUDA

TOTAL_MEMORY = 8 << 30


def _device_module() -> types.ModuleType:
    """`torch.cpu` with those functions of `torch.cuda` that verl calls."""
    module = types.ModuleType("verl_cpu.device")
    nothing = lambda *args, **kwargs: None  # noqa: E731
    for name in ("empty_cache", "ipc_collect", "manual_seed", "manual_seed_all", "set_device",
                 "reset_peak_memory_stats", "synchronize"):
        setattr(module, name, nothing)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved",
                 "max_memory_reserved"):
        setattr(module, name, lambda *args, **kwargs: 0)
    module.is_available, module.current_device = lambda: True, lambda: "cpu"
    module.device_count = lambda: 1
    module.mem_get_info = lambda *args: (TOTAL_MEMORY, TOTAL_MEMORY)
    module.get_rng_state = lambda *args: torch.get_rng_state()
    module.set_rng_state = lambda state, *args: torch.set_rng_state(state)
    module.get_device_name = lambda *args: "cpu"
    module.get_device_properties = lambda *args: types.SimpleNamespace(
        name="cpu", total_memory=TOTAL_MEMORY
    )
    module.current_stream, module.Stream = torch.cpu.current_stream, torch.cpu.Stream
    module.stream = torch.cpu.stream
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformCUDA):
    """Ray counts its logical GPUs as for CUDA; everything else is the CPU's."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"  # verl passes it to `to` and `to_empty`

    def device_count(self) -> int:
        return 1

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def is_ipc_supported(self) -> bool:
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        return {}

    @contextmanager
    def nvtx_range(self, msg: str) -> Any:
        yield

    def _nothing(self, *args: Any, **kwargs: Any) -> None: ...

    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = _nothing
    empty_cache = profiler_start = profiler_stop = cudart = get_collective_module = _nothing


def _one_backend_per_device() -> None:
    """verl asks for `cpu:gloo,cpu:gloo`, which torch refuses."""
    init = torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, **kwargs: Any) -> Any:
        if backend and set(backend.split(",")) == {"cpu:gloo"}:
            backend = "gloo"
        return init(backend=backend, **kwargs)

    torch.distributed.init_process_group = init_process_group


def _register_rollout() -> None:
    from verl.workers.rollout import base, replica

    def load() -> Any:
        import verl_cpu_rollout

        return verl_cpu_rollout.Replica

    base._ROLLOUT_REGISTRY["hf_cpu", "async"] = "verl_cpu_rollout.Adapter"
    replica.RolloutReplicaRegistry.register("hf_cpu", load)


set_platform(PlatformCPU())
_one_backend_per_device()
_register_rollout()
