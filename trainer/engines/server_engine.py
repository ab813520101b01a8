"""A vLLM server that the user started: samples turns over HTTP, and reads new weights from a file.

The OpenAI-compatible API samples. vLLM's development endpoints (VLLM_SERVER_DEV_MODE=1) have the
server's worker read the weights, so it must run on this machine, as the same user or as root.
docs/engines.md has the command that starts it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, distributed

from lldscope.core.errors import LldscopeError, UsageError

from ..config import TrainConfig
from ..rollout.tokens import Sampling
from .turn_player import Turn
from .vllm_engine import row_seeds, turn_request

_AT_ONCE = 64
"""Requests in flight, each one row: the server makes batches of them."""
_ATTEMPTS = 3
_TIMEOUT = httpx2.Timeout(600.0, connect=10.0)
"""Seconds. A turn waits for all rows before it; a new weight file for all of it to be read."""
_SHM = Path("/dev/shm")
_HOW = "start it as docs/engines.md says"


class ServerEngine:
    """An `Engine`. The same rows with the same seeds get the same turns up to rounding, which
    differs with what the server happens to batch together."""

    def __init__(self, config: TrainConfig, eos_id: int | None) -> None:
        """Raises as `check_server`."""
        self._server = _Server(config.engine_url)
        self._model = self._server.check(config)
        self._eos_id = eos_id
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="vllm-client")

    def generate(
        self,
        contexts: Sequence[Sequence[int]],
        limits: Sequence[int],
        seed: int,
        sampling: Sampling,
    ) -> list[Turn]:
        """See `Engine`. One request per row: within one request all rows would share its seed, and
        so would the rollouts of a question. Raises LldscopeError if the server goes away."""
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
        together = distributed.is_initialized() and distributed.get_world_size() > 1
        if not together or distributed.get_rank() == 0:
            self._hand_over(weights)
        if together:
            distributed.barrier()

    def _hand_over(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        tensors = _one_of_each(weights)
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

    def close(self) -> None:
        """Close the connections; the server goes on."""
        self._pool.shutdown(cancel_futures=True)
        self._server.close()


def check_server(config: TrainConfig) -> None:
    """Raise LldscopeError if no server answers at `config.engine_url`, or one that cannot take
    weights, and UsageError if it is too small for the run or the address is none."""
    server = _Server(config.engine_url)
    server.check(config)
    server.close()


def _one_of_each(weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors on the CPU, tied ones once: a safetensors file holds no tensor twice, and a model
    with tied weights needs only the first."""
    unique: dict[str, Tensor] = {}
    where = set()
    for name, weight in weights:
        tensor = weight.detach().cpu().contiguous()
        if tensor.data_ptr() not in where:
            unique[name] = tensor
            where.add(tensor.data_ptr())
    return unique


class _Server:
    """HTTP to one server, with errors that say what to do. May be used by several threads."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"engine_url={url!r} is no address: write http://HOST:PORT")
        # No proxy from the environment: it would catch a server on this machine too.
        self._client = httpx2.Client(
            timeout=_TIMEOUT, trust_env=False, limits=httpx2.Limits(max_connections=_AT_ONCE)
        )

    def check(self, config: TrainConfig) -> str:
        """The name of the model served, once all that a run needs of the server is there."""
        found = self._ask("GET", "/v1/models")
        try:
            model = found.json()["data"][0]
            name, longest = model["id"], model["max_model_len"]
        except (ValueError, LookupError, TypeError):
            raise LldscopeError(
                f"What answers at {self.url} is no vLLM server: {_HOW}, or correct engine_url"
            ) from None
        if longest < config.sequence_tokens:
            raise UsageError(
                f"The server at {self.url} takes {longest} tokens and sequence_tokens is "
                f"{config.sequence_tokens}: start it with --max-model-len {config.sequence_tokens}"
            )
        self.rpc("check_ready")
        return name

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """What the server answers. Raises LldscopeError with its words if it refuses."""
        answer = self._ask("POST", path, body)
        if answer.status_code != 200:
            raise LldscopeError(
                f"The server at {self.url} answers {path} with {answer.status_code}: "
                f"{_words(answer)}"
            )
        return answer.json()

    def rpc(self, method: str, *arguments: str) -> None:
        """Have the server's worker call a method of `vllm_worker.WeightSync`."""
        body = {"method": method, "args": arguments}
        answer = self._ask("POST", "/collective_rpc", body)
        if answer.status_code == 404:
            raise LldscopeError(
                f"The server at {self.url} was started without VLLM_SERVER_DEV_MODE=1 and cannot "
                f"take new weights: {_HOW}"
            )
        if f"no attribute '{method}'" in _words(answer):
            raise LldscopeError(
                f"The server at {self.url} was started without --worker-extension-cls "
                f"lldscope_trainer.engines.vllm_worker.WeightSync and cannot take new weights: "
                f"{_HOW}"
            )
        if answer.status_code != 200:
            raise LldscopeError(
                f"The server at {self.url} cannot take the weights of this run: {_words(answer)}"
            )

    def forget_prefixes(self) -> None:
        """Drop keys and values computed with the old weights."""
        for _ in range(50):
            if self.post("/reset_prefix_cache", {})["success"]:
                return
            time.sleep(0.1)  # a row that nobody waits for any more is still being written
        raise LldscopeError(
            f"The server at {self.url} is busy with other requests and keeps what it computed with "
            "the old weights: it must serve this run alone"
        )

    def _ask(self, verb: str, path: str, body: dict[str, Any] | None = None) -> httpx2.Response:
        for left in reversed(range(_ATTEMPTS)):
            try:
                return self._client.request(verb, self.url + path, json=body)
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
                # Who took too long to answer would only be asked to do the same work again.
                if not left or isinstance(error, httpx2.ReadTimeout):
                    why = str(error) or type(error).__name__
                    raise LldscopeError(
                        f"No vLLM server answers at {self.url} ({why}): {_HOW}, or correct "
                        "engine_url"
                    ) from None
                time.sleep(0.5)
        raise AssertionError("not reached")

    def close(self) -> None:
        self._client.close()


def _words(answer: httpx2.Response) -> str:
    """What the server says went wrong, shortened."""
    try:
        text = str(answer.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        text = answer.text
    return text[:500]
