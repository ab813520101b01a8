"""What a step costs: operations against torch's own count, seconds that add up, what is shown."""

from __future__ import annotations

import pytest
import torch
from keeper import SMALL, Keeper, train
from lldscope_trainer import meter
from lldscope_trainer.config import load_config
from lldscope_trainer.display import cost, summary
from lldscope_trainer.meter import Flops, parts_of, peak_flops
from lldscope_trainer.policy.logprobs import action_logps
from lldscope_trainer.policy.model import load_policy
from lldscope_trainer.train import StepReport
from torch.utils.flop_counter import FlopCounterMode

CPU = torch.device("cpu")


def test_operations_are_those_that_torch_counts_and_causal_attention():
    """torch counts products of matrices; attention is a kernel of its own on the CPU."""
    model = load_policy("tiny", CPU).model
    ids = torch.randint(20, 1000, (3, 50), generator=torch.Generator().manual_seed(0))
    mask = torch.zeros_like(ids)
    mask[:, 10:30] = 1
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        action_logps(model, ids, mask)
    counted = counter.get_flop_counts()["Global"]
    products = sum(n for op, n in counted.items() if "mm" in str(op))
    c = model.config
    attention = 2 * c.num_hidden_layers * c.hidden_size * 50 * 50
    assert Flops(model).forward([50] * 3, 60) == products + 3 * attention


def test_cards_are_known_by_their_names(monkeypatch):
    assert peak_flops(CPU) is None
    for name, peak in (
        ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA L40S", 362e12), ("NVIDIA L40", 181e12),
        ("NVIDIA L4", 121e12), ("NVIDIA H200", 989e12), ("NVIDIA H20", 148e12),
        ("NVIDIA B300 SXM6 AC", 2250e12), ("NVIDIA GeForce RTX 5090", 210e12),
        ("NVIDIA GeForce RTX 4090 D", None), ("NVIDIA A10G", None), ("Something else", None),
    ):
        monkeypatch.setattr(meter.torch.cuda, "get_device_name", lambda device, n=name: n)
        assert peak_flops(torch.device("cuda")) == peak


def test_a_step_records_what_it_cost():
    keeper = Keeper()
    config = load_config(
        "tiny", [*SMALL, "steps=2", "eval_every=1", "eval_questions=2", "kl_coefficient=0.01"]
    )
    train(config, keeper)
    first, second = keeper.rows("steps")
    for row in (first, second):
        whole = row["seconds_rollout"] + row["seconds_update"] + row["seconds_record"]
        assert sum(parts_of(row).values()) == pytest.approx(whole + row["seconds_evaluation"])
        parts = [row[f"seconds_{part}"] for part in ("score", "reference", "sync")]
        assert all(0 <= part < row["seconds_update"] for part in parts)
        assert row["seconds_reference"] > 0
        assert row["seconds_evaluation"] > 0, "of the evaluation before it"
        assert row["flops"] > 6 * 80_000 * row["n_tokens"]
        assert row["flops_possible"] is row["memory_peak"] is None, "of a CPU nothing is known"


def test_rows_that_no_update_passes_are_no_operations():
    """Else they would count in the MFU."""
    sums = {}
    for skip in ("false", "true"):
        keeper = Keeper()
        settings = [*SMALL, "eval_questions=0", "steps=1", f"skip_constant_groups={skip}"]
        train(load_config("tiny", settings), keeper)
        (row,) = keeper.rows("steps")
        rows = [r for r in keeper.rows("responses") if skip == "false" or r["advantage"]]
        sums[skip] = row["flops"], len(rows), row["n_tokens"]
    assert 0 < sums["true"][1] < sums["false"][1]
    assert sums["true"][2] == sums["false"][2], "what was sampled is the same"
    assert 0 < sums["true"][0] < 0.8 * sums["false"][0]


@pytest.mark.parametrize(("mfu", "text"), [(None, "812 tokens/s"), (0.31, "812 tokens/s  MFU 31%")])
def test_the_display_tells_the_speed(mfu, text):
    report = StepReport(
        step=0, reward=0.5, delta_correct=-0.2, tokens_per_second=812.4, mfu=mfu, phase="decay",
        seconds={"sync": 0.0, "scoring": 0.25, "update": 3.0},
        memory_peak=None if mfu is None else 3 * 2**29,
    )
    peak = "" if mfu is None else "; peak 1.5 GiB"
    assert cost(report) == f"seconds: update 3.00, scoring 0.25{peak}"
    assert summary(report) == f"reward 0.50  Δ correct -0.20  {text}  decay"
