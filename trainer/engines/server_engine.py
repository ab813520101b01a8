"""A vLLM server that the user started: samples turns over HTTP, and reads new weights from a file.

The OpenAI-compatible API samples. vLLM's development endpoints (VLLM_SERVER_DEV_MODE=1) have the
server's worker take the weights; to read a file it must run on this machine, as the same user or as
root. docs/engines.md has the commands that start it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, distributed

from lldscope.core.errors import LldscopeError

from ..config import TrainConfig
from ..rollout.tokens import Sampling
from .server_client import Server, most_at_once
from .turn_player import Turn
from .vllm_engine import row_seeds, turn_request

_SHM = Path("/dev/shm")


class ServerEngine:
    """An `Engine`. The same rows with the same seeds get the same turns up to rounding, which
    differs with what the server happens to batch together."""

    def __init__(self, config: TrainConfig, eos_id: int | None) -> None:
        """Raises as `check_server`."""
        self._server = Server(config.engine_url)
        self._model = self._server.check(config)
        self._eos_id = eos_id
        # Threads are started as rows need them.
        self._pool = ThreadPoolExecutor(most_at_once(), thread_name_prefix="vllm-client")

    def generate(
        self,
        contexts: Sequence[Sequence[int]],
        limits: Sequence[int],
        seed: int,
        sampling: Sampling,
    ) -> list[Turn]:
        """See `Engine`. One request per row, all in flight at once for the server to batch: within
        one request all rows would share its seed, and so would the rollouts of a question. Raises
        LldscopeError if the server goes away."""
        rows = zip(contexts, limits, row_seeds(seed, len(limits)), strict=True)
        waiting = [self._pool.submit(self._turn, *row, sampling) for row in rows]
        try:
            return [turn.result() for turn in waiting]
        finally:
            for turn in waiting:
                turn.cancel()

    def _turn(self, context: Sequence[int], limit: int, seed: int, sampling: Sampling) -> Turn:
        if limit < 1:
            return Turn([], [], True)
        body = turn_request(sampling, self._eos_id, limit, seed)
        body |= {"model": self._model, "prompt": list(context), "return_token_ids": True}
        choice = self._server.post("/v1/completions", body)["choices"][0]
        ids, logps = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
        if ids is None or logps is None or len(ids) != len(logps):
            raise LldscopeError(
                f"The server at {self._server.url} gives no token ids or no log-probabilities: "
                "vLLM 0.31 or newer does"
            )
        return Turn(ids, logps, choice["finish_reason"] == "length")

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Sample from these weights from now on. Of several processes the first hands them over,
        and all wait for it."""
        if _sends():
            self._hand_over(weights)
        if distributed.is_initialized() and distributed.get_world_size() > 1:
            distributed.barrier()

    def _hand_over(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        # A safetensors file holds no tensor twice, and a model with tied weights needs only the
        # first name.
        unique: dict[int, tuple[str, Tensor]] = {}
        for name, weight in weights:
            tensor = weight.detach().contiguous()
            unique.setdefault(tensor.data_ptr(), (name, tensor))
        tensors = {name: tensor.cpu() for name, tensor in unique.values()}
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        roomy = _SHM.is_dir() and shutil.disk_usage(_SHM).free > 2 * size
        # Only this user may look into the directory.
        with tempfile.TemporaryDirectory(prefix="lldscope-", dir=_SHM if roomy else None) as folder:
            path = Path(folder) / "weights.safetensors"
            try:
                save_file(tensors, path)
            except (OSError, SafetensorError) as error:
                raise LldscopeError(
                    f"The weights for the vLLM server do not fit into {folder} ({error}): make "
                    "room there, or set TMPDIR to a directory that has it"
                ) from None
            self._server.rpc("take_weights_from", str(path))
        self._server.forget_prefixes()

    def sleep(self) -> None:
        """The server is on a GPU of its own, and stays awake."""

    def close(self) -> None:
        """Close the connections; the server goes on."""
        self._pool.shutdown(cancel_futures=True)
        self._server.close()


def _sends() -> bool:
    """Whether this process, of those of the run, hands the weights over."""
    return not distributed.is_initialized() or distributed.get_rank() == 0
