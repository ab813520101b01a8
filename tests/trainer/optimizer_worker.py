"""One process of test_optimizers.py or of tests/gpu: `optimizer_worker.py DEVICE DIRECTORY CASE…`,
alone or under torchrun. Each case is a comma-separated list of settings; what it saw goes to
DIRECTORY/CASE-NUMBER-RANK.safetensors."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lldscope_trainer.algorithms.update import Updater
from lldscope_trainer.checkpoint import Checkpoint, _write
from lldscope_trainer.config import TrainConfig, load_config
from lldscope_trainer.optim import make_optimizer
from lldscope_trainer.optim.processes import Processes, start
from lldscope_trainer.policy.model import Policy, load_policy
from lldscope_trainer.rollout.batch import RolloutBatch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from keeper import batch_of, one_step

ROWS = 12
"""Rollouts of all ranks together."""


def make_batch(policy: Policy, processes: Processes) -> RolloutBatch:
    """This rank's share of ROWS made-up rollouts."""
    generator = torch.Generator().manual_seed(0)
    lengths = [24 + 3 * i for i in range(ROWS)]
    ids = torch.randint(5, 500, (ROWS, max(lengths)), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, 6 : length // 2] = mask[row, length // 2 + 3 : length] = 1
    advantages = torch.randn(ROWS, generator=generator)
    mine = list(range(processes.rank, ROWS, processes.size))
    ids, mask, advantages = (x[mine].to(processes.device) for x in (ids, mask, advantages))
    batch = batch_of(ids, mask, [lengths[i] for i in mine], advantages)
    with torch.no_grad():
        batch.old = batch.score(policy.model, range(len(mine)), 10**6)
    return batch


class Run:
    """A policy in training, and what its updates looked like."""

    def __init__(self, config: TrainConfig, processes: Processes) -> None:
        self.policy = load_policy(
            config.model,
            processes.device,
            getattr(torch, config.dtype),
            gradient_checkpointing=config.gradient_checkpointing,
        )
        with torch.no_grad():  # so that bfloat16 weights start where the others do
            for parameter in self.policy.model.parameters():
                parameter.copy_(parameter.bfloat16())
        self.optimizer = make_optimizer(self.policy, config, processes)
        self.updater = Updater(config, self.optimizer, processes)
        self.processes = processes
        self.step = 0
        with self.optimizer.full_weights():
            self.batch = make_batch(self.policy, processes)
            for _ in range(processes.rank):  # ranks may differ in how often they look
                self.batch.score(self.policy.model, [0], 1)

    def update(self, times: int) -> list[list[float]]:
        rows = []
        for _ in range(times):
            stats = one_step(self.updater, self.batch, self.step, seed=0, answer_weight=1.0)
            self.step += 1
            rows += [
                [s.grad_norm, s.loss_policy, s.loss_llds or 0.0, s.n_tokens, s.skipped]
                for s in stats
            ]
        return rows

    def weights(self) -> torch.Tensor:
        with self.optimizer.full_weights():
            trained = [p for p in self.policy.model.parameters() if p.requires_grad]
            return torch.cat([p.detach().float().flatten().cpu() for p in trained])

    def save(self, directory: Path) -> None:
        self.optimizer.save(directory / "optimizer")
        _write(directory, self.policy, self.optimizer, self.processes)
        self.processes.most(0)  # wait for each other
        shards = [load_file(f).keys() for f in (directory / "optimizer").glob("*.safetensors")]
        names = [name for shard in shards for name in shard]
        assert len(shards) == self.processes.size
        assert len(names) == len(set(names)) > 0, "each tensor is in one file"
        assert max(map(len, shards)) < 2 * len(names) / self.processes.size + 3

    def load(self, directory: Path) -> None:
        files = {p.relative_to(directory).as_posix(): (0, 0) for p in directory.rglob("*.*")}
        Checkpoint(directory, None, files).load(self.optimizer)  # type: ignore[arg-type]


def play(config: TrainConfig, processes: Processes, directory: Path) -> dict[str, torch.Tensor]:
    """Three updates, one poisoned, a save, two more; then the two more again, twice: after going
    back, and in plain torch."""
    records: dict[str, list[list[float]] | torch.Tensor] = {}
    run = Run(config, processes)
    records["first"] = run.update(3)
    records["weights"] = run.weights()

    clean = run.batch.advantages
    if processes.rank == processes.size - 1:
        run.batch.advantages = clean * float("nan")
    records["poisoned"] = run.update(1)
    run.batch.advantages = clean
    run.step -= 1
    records["weights_after_poison"] = run.weights()

    run.save(directory)
    records["on"] = run.update(2)
    records["weights_on"] = run.weights()
    run.load(directory)
    run.step -= 2
    records["again"] = run.update(2)
    records["weights_again"] = run.weights()

    plain = config.to_dict() | {"optimizer": "torch", "dtype": "float32"}
    elsewhere = Run(TrainConfig(**plain), processes)
    elsewhere.load(directory)
    records["weights_loaded"] = elsewhere.weights()
    elsewhere.batch.old = run.batch.old
    elsewhere.step = 3
    records["elsewhere"] = elsewhere.update(2)
    records["weights_elsewhere"] = elsewhere.weights()
    return {k: torch.as_tensor(v, dtype=torch.float64) for k, v in records.items()}


def main(device: str, directory: Path, cases: list[str]) -> None:
    with start(device) as processes:
        for number, case in enumerate(cases):
            config = load_config("tiny", ["lr=1e-3", "updates=1", *case.split(",")])
            checkpoint = directory / f"checkpoint-{number}"
            (checkpoint / "optimizer").mkdir(parents=True, exist_ok=True)
            records = play(config, processes, checkpoint)
            save_file(records, directory / f"case-{number}-{processes.rank}.safetensors")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
