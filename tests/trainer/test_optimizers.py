"""Plain torch and DeepSpeed's ZeRO against each other, in real processes that talk over gloo."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lldscope_trainer.config import load_config
from lldscope_trainer.optim.optimizer import TorchOptimizer
from lldscope_trainer.optim.processes import Processes, start
from lldscope_trainer.policy.model import load_policy
from safetensors.torch import load_file

from lldscope.core.errors import LldscopeError

WORKER = Path(__file__).with_name("optimizer_worker.py")
# The band keeps rounding, which differs with the padding of a batch, from opening a gate.
COMMON = "llds=token,llds_dead_band=1e-4,entropy_coefficient=0.01,micro_tokens=200"
HAVE_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
STAGES = (2, 3)  # 1 is 2 without sharded gradients, and alone is what tests/gpu compares
needs_deepspeed = pytest.mark.engine("deepspeed")

CASES = {"torch": COMMON, "torch-bf16": f"{COMMON},dtype=bfloat16"}
for _stage in STAGES if HAVE_DEEPSPEED else ():
    CASES[f"zero{_stage}"] = f"{COMMON},optimizer=deepspeed,zero_stage={_stage}"
if HAVE_DEEPSPEED:
    CASES["zero3-bf16"] = f"{CASES['zero3']},dtype=bfloat16"

Seen = dict[str, torch.Tensor]
NORM, LOSS, LLDS, TOKENS, SKIPPED = range(5)


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> dict[tuple[str, int], list[Seen]]:
    """(case, number of processes) -> what each rank saw."""
    results = {}
    for size, cases in ((1, ["torch"]), (2, [*CASES])):
        directory = tmp_path_factory.mktemp(f"ranks-{size}")
        torchrun = "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={size}"
        command = [sys.executable, *(torchrun if size > 1 else ())]
        done = subprocess.run(
            [*command, str(WORKER), "cpu", str(directory), *(CASES[name] for name in cases)],
            capture_output=True,
            text=True,
            timeout=600,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert done.stdout == "", "the standard output belongs to the command"
        for number, name in enumerate(cases):
            files = [directory / f"case-{number}-{rank}.safetensors" for rank in range(size)]
            results[name, size] = [load_file(file) for file in files]
    return results


def combined(ranks: list[Seen], phase: str) -> torch.Tensor:
    """(updates, 3): norm, policy loss and LLDS loss over all ranks."""
    rows = torch.stack([r[phase] for r in ranks])
    tokens = rows[..., TOKENS]
    losses = [(rows[..., k] * tokens).sum(0) / tokens.sum(0) for k in (LOSS, LLDS)]
    return torch.stack([rows[0, :, NORM], *losses], dim=1)


ZERO = ["zero2", "zero3", "zero3-bf16"]
EVERY = ["torch", "torch-bf16", *(pytest.param(name, marks=needs_deepspeed) for name in ZERO)]
every_case = pytest.mark.parametrize("name", EVERY)


@pytest.mark.slow
def test_two_processes_are_one(records):
    one, two = records["torch", 1], records["torch", 2]
    torch.testing.assert_close(combined(two, "first"), combined(one, "first"), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(two[0]["weights"], one[0]["weights"], rtol=0, atol=1e-5)
    assert (one[0]["first"][:, NORM] > 1).all(), "the norm before clipping at 1"


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize("stage", STAGES)
def test_zero_is_plain_torch(records, stage):
    plain, split = records["torch", 1], records[f"zero{stage}", 2]
    for phase in ("first", "on"):
        expected = combined(plain, phase)
        torch.testing.assert_close(combined(split, phase), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(split[0]["weights"], plain[0]["weights"], rtol=0, atol=1e-5)


@pytest.mark.slow
@every_case
def test_ranks_agree(records, name):
    first, second = records[name, 2]
    for phase in ("first", "poisoned", "on"):
        norms = [rank[phase][:, NORM] for rank in (first, second)]
        torch.testing.assert_close(*norms, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(first[phase][:, SKIPPED], second[phase][:, SKIPPED])
        assert not torch.equal(first[phase][:, TOKENS], second[phase][:, TOKENS])
    for phase in ("weights", "weights_on"):
        assert torch.equal(first[phase], second[phase])


@pytest.mark.slow
@every_case
def test_a_gradient_that_is_not_finite_changes_nothing(records, name):
    """One rank's NaN: no rank applies the update, and the moments stay clean."""
    for rank in records[name, 2]:
        assert not rank["poisoned"][0, NORM].isfinite()
        assert rank["poisoned"][0, SKIPPED] == 1
        assert torch.equal(rank["weights_after_poison"], rank["weights"])
        assert rank["on"][:, NORM].isfinite().all()
        assert not rank["on"][:, SKIPPED].any()


@pytest.mark.slow
@every_case
def test_going_back_repeats_to_the_bit(records, name):
    for rank in records[name, 2]:
        assert torch.equal(rank["again"], rank["on"])
        assert torch.equal(rank["weights_again"], rank["weights_on"])
        assert not torch.equal(rank["weights_on"], rank["weights"])


@pytest.mark.slow
@every_case
def test_a_checkpoint_goes_on_in_plain_torch(records, name):
    """Moments and weights are saved whole, so that another optimizer can take them up."""
    for rank in records[name, 2]:
        saved, loaded = rank["weights"], rank["weights_loaded"]
        if name.endswith("bf16") and name.startswith("zero"):
            assert torch.equal(loaded.float().bfloat16(), saved.float().bfloat16())
            assert not torch.equal(loaded, saved), "float32 weights come along"
        else:
            assert torch.equal(loaded, saved)
        if not name.endswith("bf16"):
            torch.testing.assert_close(rank["elsewhere"], rank["on"], rtol=1e-4, atol=1e-5)
            assert (rank["weights_elsewhere"] - rank["weights_on"]).abs().max() < 1e-5


def plain_optimizer(**settings) -> TorchOptimizer:
    config = load_config("tiny", [f"{k}={v}" for k, v in settings.items()])
    policy = load_policy("tiny", torch.device("cpu"))
    return TorchOptimizer(policy, config, Processes(0, 1, 0, torch.device("cpu")))


def test_fused_updates_are_the_same_up_to_rounding_and_go_on_from_a_file(tmp_path, monkeypatch):
    """What runs on CUDA, where counts of steps lie on the device."""

    def train(optimizer: TorchOptimizer, n: int) -> None:
        for k in range(n):
            for i, p in enumerate(optimizer._parameters):
                p.grad = torch.full_like(p, 0.01 * (i - k))
            optimizer.step()

    plain = plain_optimizer(lr="1e-3")
    assert not plain.fused
    monkeypatch.setattr(TorchOptimizer, "fused", True)
    fused = plain_optimizer(lr="1e-3")
    assert fused._adamw.param_groups[0]["fused"]
    train(plain, 3)
    train(fused, 3)
    fused.save(tmp_path)
    again = plain_optimizer(lr="1e-3")
    again.set_weights(dict(fused._named))
    again.load(tmp_path)
    for optimizer in (plain, fused, again):
        train(optimizer, 2)
    for a, b, c in zip(plain._parameters, fused._parameters, again._parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
        assert torch.equal(b, c)


def test_the_state_of_another_model_is_refused(tmp_path):
    optimizer = plain_optimizer()
    optimizer.save(tmp_path)
    steps = {"steps": {"model.embed_tokens.weight": 3}}
    (tmp_path / "optimizer.json").write_text(json.dumps(steps))
    with pytest.raises(LldscopeError, match=str(tmp_path)):
        optimizer.load(tmp_path)


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(LldscopeError, match="one process per GPU"):
        start("cuda")


@needs_deepspeed
def test_gradients_cross_ranks_in_single_precision():
    from lldscope_trainer.optim.zero import ZeroOptimizer

    optimizer = ZeroOptimizer.__new__(ZeroOptimizer)
    optimizer._named, optimizer._half = {}, True
    settings = optimizer._settings(load_config("tiny", ["optimizer=deepspeed", "dtype=bfloat16"]))
    assert settings["communication_data_type"] == "fp32"
