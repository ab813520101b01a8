"""Runs that are short of memory: what saves some, what is message, and that they can go on."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from keeper import BRIEF, Keeper, train
from lldscope_trainer import cli, loop, preflight
from lldscope_trainer.checkpoint import find_checkpoint
from lldscope_trainer.config import load_config
from lldscope_trainer.engines.players import Players
from lldscope_trainer.optim.optimizer import TorchOptimizer
from lldscope_trainer.policy.logprobs import action_logps
from lldscope_trainer.policy.model import load_policy
from lldscope_trainer.train import Trainer

from lldscope.core.errors import UsageError

QUIET = [*BRIEF, "updates=2"]
FULL = "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of …"


def test_moments_are_in_main_memory_between_updates_and_nothing_else_changes(tmp_path):
    """Checkpoints, a resumed run and the next update take them from there."""
    shared, weights = [*QUIET, "entropy_coefficient=0.01", "steps=2", "checkpoint_every=1"], {}
    for name, settings in {"plain": shared, "offload": [*shared, "offload_moments=true"]}.items():
        config = load_config("tiny", settings)
        trainer = Trainer(config, Keeper())
        loop.run(trainer, Keeper(), run_dir=tmp_path / name)
        weights[name] = [p.clone() for p in trainer.policy.model.parameters()]
        adamw, memory = trainer.optimizer._adamw.state, trainer.optimizer._main_memory
        in_memory = [state[m] is memory.get(p, {}).get(m) for p, state in adamw.items()
                for m in ("exp_avg", "exp_avg_sq")]
        assert set(in_memory) == {name == "offload"}
    resumed = Trainer(config, Keeper(), checkpoint=find_checkpoint(tmp_path / "offload", 1))
    assert resumed.optimizer._main_memory
    resumed.step(1)
    for a, b, c in zip(*weights.values(), resumed.policy.model.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    with pytest.raises(UsageError, match="needs a GPU: without one"):
        preflight.check(config)
    with pytest.raises(UsageError, match="offload_moments=true needs optimizer=torch"):
        config.replace(optimizer="deepspeed")


def test_a_hopeless_run_ends_in_one_sentence_as_failed_and_can_be_resumed(tmp_path, monkeypatch):
    run = tmp_path / "run"
    arguments = ["tiny", *QUIET, "steps=2", "checkpoint_every=1", "--run", str(run)]
    with monkeypatch.context() as short:
        steps = []
        forward = TorchOptimizer.step
        short.setattr(TorchOptimizer, "step", lambda self: steps.append(1) or forward(self))
        limited = TorchOptimizer.forward

        def later(self, *args, **options):
            if len(steps) >= 2:  # in the second step
                raise torch.OutOfMemoryError(FULL)
            return limited(self, *args, **options)

        short.setattr(TorchOptimizer, "forward", later)
        done = CliRunner().invoke(cli.train, arguments)
    message = str(done.exception)
    assert message.startswith("out of memory in step 1 (CUDA out of memory)")
    assert "gradient_checkpointing" in message
    info = json.loads((run / "run.json").read_text())
    assert info["status"] == "failed"
    done = CliRunner().invoke(cli.train, ["--resume", "--run", str(run)])
    assert done.exit_code == 0, done.output
    assert json.loads((run / "run.json").read_text())["status"] == "finished"


def test_layers_in_half_precision_score_what_autocast_does():
    """To the bit, in half the memory: the KL to the starting policy begins at 0."""
    policies = [
        load_policy("tiny", torch.device("cpu"), torch.bfloat16, half_layers=half)
        for half in (False, True)
    ]
    ids = torch.randint(20, 1000, (3, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[:, :5] = 0
    with torch.no_grad():
        full, half = (action_logps(policy.model, ids, mask) for policy in policies)
    assert torch.equal(full, half)
    sizes = [sum(p.nbytes for p in policy.model.get_decoder().parameters()) for policy in policies]
    layers = policies[1].model.get_decoder().layers
    assert layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    assert layers[0].input_layernorm.weight.dtype == torch.float32
    assert sizes[1] < 0.8 * sizes[0]


def test_the_trainer_lets_the_engine_sleep_between_sampling_and_sync(monkeypatch):
    records: list[str] = []
    for name in ("sleep", "sync"):
        monkeypatch.setattr(Players, name, lambda self, n=name: records.append(n))
    update = TorchOptimizer.step
    monkeypatch.setattr(
        TorchOptimizer, "step", lambda self: records.append("update") or update(self)
    )
    score = Trainer._rescore
    monkeypatch.setattr(
        Trainer, "_rescore", lambda *arguments: records.append("score") or score(*arguments)
    )
    train(load_config("tiny", [*QUIET, "steps=1"]), Keeper())
    # Scoring afterwards comes before the sync, which wakes the engine: both would need the memory.
    assert records == ["sleep", "update", "update", "score", "sync"]
