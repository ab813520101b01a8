"""Weights by vLLM's own transfer: what vLLM is asked for, with a stand-in for its side of it. Its
NCCL needs GPUs."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from lldscope_trainer.engines.nccl_sync import NcclSync, one_of_each, own_address

from lldscope.core.errors import LldscopeError

NAMES = (
    "HTTPVLLMWeightSyncClient", "ParamMeta", "WeightSource", "WeightTransferTrainerFactory",
)  # fmt: skip
TRANSFER = "vllm.distributed.weight_transfer"


class Transfer:
    """Notes how it was begun and what it is to send."""

    def __init__(self, fails: str = "") -> None:
        self.sent: list[dict[str, torch.Tensor]] = []
        self.fails = fails

    def trainer_init(self, info, *, client, source):
        self.info, self.client, self.source = info, client, source
        return self

    def send_weights(self) -> None:
        if self.fails:
            raise RuntimeError(self.fails)
        info = self.source.metadata()
        sent = dict(self.source)
        assert [(m.name, m.dtype, m.shape) for m in info] == [
            (name, weight.dtype, tuple(weight.shape)) for name, weight in sent.items()
        ]
        self.sent.append(sent)


@pytest.fixture
def transfer(monkeypatch):
    sample = Transfer()

    def meta(name, dtype, shape):
        return SimpleNamespace(name=name, dtype=dtype, shape=shape)

    there = ModuleType(TRANSFER)
    results = (lambda url: url, meta, object, sample)
    for name, what in zip(NAMES, results, strict=True):
        setattr(there, name, what)
    engine = ModuleType(f"{TRANSFER}.nccl_engine")
    engine.NCCLTrainerInitInfo = SimpleNamespace
    for name, module in (
        ("vllm", ModuleType("vllm")), ("vllm.distributed", ModuleType("vllm.distributed")),
        (TRANSFER, there), (f"{TRANSFER}.nccl_engine", engine),
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)
    return sample


SERVER = SimpleNamespace(url="http://127.0.0.1:8123", n_workers=lambda: 2)


def test_the_group_is_this_process_and_the_workers_and_tied_weights_go_once(transfer):
    sync = NcclSync(SERVER)
    assert (transfer.info.rank, transfer.info.world_size) == (0, 3)
    assert transfer.info.master_address == "127.0.0.1"
    assert transfer.client == SERVER.url
    tied, other = torch.nn.Parameter(torch.rand(3, 2)), torch.rand(4).bfloat16()
    sync.send([("embed", tied), ("norm", other), ("head", tied)])
    (sent,) = transfer.sent
    assert sent.keys() == {"embed", "norm"}
    assert torch.equal(sent["embed"], tied)
    assert not sent["embed"].requires_grad
    assert list(transfer.source) == [], "nothing is held between two syncs"


def test_what_goes_wrong_is_one_sentence(transfer):
    sync = NcclSync(SERVER)
    transfer.fails = "500 Server Error for url"
    with pytest.raises(LldscopeError, match=r"500 Server Error.*weight-transfer-config.*=file"):
        sync.send([("norm", torch.rand(4))])


def test_a_weight_that_is_no_view_of_another_is_sent():
    both = torch.rand(2, 3)
    assert [name for name, _ in one_of_each([("a", both), ("b", both.clone())])] == ["a", "b"]


def test_the_port_is_free():
    address, port = own_address("http://127.0.0.1:8123")
    assert address == "127.0.0.1"
    assert 1024 <= port < 65536


@pytest.mark.slow
@pytest.mark.engine("vllm")
def test_vllm_has_what_is_asked_of_it():
    from vllm.distributed import weight_transfer
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    assert all(hasattr(weight_transfer, name) for name in NAMES)
    info = NCCLTrainerInitInfo(rank=0, master_address="::", master_port=1, world_size=2)
    assert info.packed
    fields = {f.name for f in dataclasses.fields(weight_transfer.ParamMeta)}
    assert {"name", "dtype", "shape"} <= fields
    assert {"metadata", "__iter__"} <= weight_transfer.WeightSource.__abstractmethods__
