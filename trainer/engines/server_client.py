"""HTTP to a vLLM server: what it is asked, and errors that say what to do. Loads no torch, so that
a server that is not there is named at once."""

from __future__ import annotations

import resource
import time
from typing import Any

import httpx2

from lldscope.core.errors import LldscopeError, UsageError

from ..config import TrainConfig

_SPARE = 128
"""Open files that are left for everything else in this process."""
_ATTEMPTS = 3
_TIMEOUT = httpx2.Timeout(600.0, connect=10.0)
"""Seconds. A turn waits for all rows before it; a new weight file for all of it to be read."""
_HOW = "start it as docs/engines.md says"


def check_server(config: TrainConfig) -> None:
    """Raise LldscopeError if no server answers at `config.engine_url`, or one that cannot take
    weights, and UsageError if it is too small for the run or the address is none."""
    server = Server(config.engine_url)
    server.check(config)
    server.close()


def most_at_once() -> int:
    """Requests that may be in flight, each a connection: as many as this process may open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if soft == resource.RLIM_INFINITY else max(64, min(4096, soft - _SPARE))


class Server:
    """HTTP to one server, with errors that say what to do. May be used by several threads."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"engine_url={url!r} is no address: write http://HOST:PORT")
        # No proxy from the environment: it would catch a server on this machine too.
        self._client = httpx2.Client(
            timeout=_TIMEOUT, trust_env=False, limits=httpx2.Limits(max_connections=None)
        )

    def check(self, config: TrainConfig) -> str:
        """The name of the model served, once all that a run needs of the server is there."""
        answer = self._ask("GET", "/v1/models")
        try:
            model = answer.json()["data"][0]
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

    def _refusal(self) -> LldscopeError:
        return LldscopeError(
            f"The server at {self.url} was started without VLLM_SERVER_DEV_MODE=1 and cannot "
            f"take new weights: {_HOW}"
        )

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
            raise self._refusal()
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
