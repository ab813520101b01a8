"""Weights to a vLLM server on other GPUs, of this machine or another, by vLLM's own weight
transfer over NCCL (https://docs.vllm.ai/en/v0.32.0/training/weight_transfer/).

Not run: no GPU, 2026-11-23.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from torch import Tensor

from lldscope.core.errors import LldscopeError

from .server_client import Server


class NcclSync:
    """A group of this process, which sends, and all workers of the server."""

    def __init__(self, server: Server) -> None:
        """Raises LldscopeError if the server does not take part."""
        from vllm.distributed.weight_transfer import (
            HTTPVLLMWeightSyncClient,
            ParamMeta,
            WeightSource,
            WeightTransferTrainerFactory,
        )
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        class Weights(WeightSource):
            """The weights of one sync, in their order."""

            def __init__(self) -> None:
                self.named: list[tuple[str, Tensor]] = []

            def metadata(self) -> list[Any]:
                return [ParamMeta(name, w.dtype, tuple(w.shape)) for name, w in self.named]

            def __iter__(self) -> Iterator[tuple[str, Tensor]]:
                return iter(self.named)

        self._url = server.url
        self._source = Weights()
        address, port = own_address(server.url)
        info = NCCLTrainerInitInfo(
            rank=0,
            master_address=address,
            master_port=port,
            world_size=1 + server.n_workers(),
        )
        with self._named_errors():
            self._engine: Any = WeightTransferTrainerFactory.trainer_init(
                info, client=HTTPVLLMWeightSyncClient(server.url), source=self._source
            )

    def send(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replace the server's weights. Tied ones go once."""
        self._source.named = one_of_each(weights)
        with self._named_errors():
            self._engine.send_weights()
        self._source.named = []

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of HTTP, of NCCL, of vLLM: they have no common class
            why = " ".join(str(error).split())[:400] or type(error).__name__
            raise LldscopeError(
                f"The server at {self._url} cannot be sent weights over NCCL ({why}): start it "
                """with --weight-transfer-config '{"backend": "nccl"}' (docs/engines.md), or """
                "take engine_sync=file"
            ) from error


def own_address(url: str) -> tuple[str, int]:
    """Address of this machine as the server at `url` sees it, and a free port here."""
    there = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((there.hostname or "127.0.0.1", there.port or 80))  # sends nothing
        address = way.getsockname()[0]
    with socket.socket() as listener:
        listener.bind((address, 0))
        return address, listener.getsockname()[1]


def one_of_each(weights: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """The weights without gradient, tied ones once: a model with tied weights needs only the first
    name."""
    unique: dict[int, tuple[str, Tensor]] = {}
    for name, weight in weights:
        tensor = weight.detach().contiguous()
        unique.setdefault(tensor.data_ptr(), (name, tensor))
    return list(unique.values())
