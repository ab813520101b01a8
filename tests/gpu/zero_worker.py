"""Updates under DeepSpeed: python -m tests.gpu.zero_worker SMALL FOLDER MODEL

Prints a line of JSON: how far each stage's weights are from plain torch's, as a share of what the
updates moved.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from lldscope_trainer.algorithms.update import Updater
from lldscope_trainer.checkpoint import Checkpoint
from lldscope_trainer.optim import make_optimizer
from lldscope_trainer.optim.processes import start
from lldscope_trainer.policy.model import load_policy
from safetensors.torch import save_file

from tests.helpers.keeper import one_step

from .checks import Place
from .made import batch, settings

CASES = {"torch": ["optimizer=torch"]} | {
    f"stage {n}": ["optimizer=deepspeed", f"zero_stage={n}"] for n in (1, 2, 3)
}


class Case:
    """A policy and its optimizer; `made` is the same for all of them."""

    def __init__(self, place: Place, name: str) -> None:
        config = settings(place, "updates=3", "llds=token", "llds_dead_band=1e-4", *CASES[name])
        self.processes = start(place.device.type)
        self.policy = load_policy(place.model, place.device)
        self.optimizer = make_optimizer(self.policy, config, self.processes)
        self.updater = Updater(config, self.optimizer, self.processes)
        with self.optimizer.full_weights():
            self.made = batch(place, self.policy.model, 6)

    def train(self, step: int) -> torch.Tensor:
        """Three updates; the weights after them."""
        one_step(self.updater, self.made, step, seed=step, answer_weight=1.0)
        return self.weights()

    def weights(self) -> torch.Tensor:
        with self.optimizer.full_weights():
            weights = [p.detach().float().flatten().cpu() for p in self.policy.model.parameters()]
            return torch.cat(weights)

    def save(self, folder: Path) -> None:
        self.optimizer.save(folder / "optimizer")
        with self.optimizer.full_weights():
            params = self.policy.model.named_parameters()
            weights = {n: p.detach().cpu().contiguous() for n, p in params}
            save_file(weights, folder / "weights.safetensors")


def main(small: bool, folder: Path, model: str) -> dict[str, float]:
    place = Place(torch.device("cpu" if small else "cuda"), folder, model, small)
    saved = folder / "zero"
    (saved / "optimizer").mkdir(parents=True, exist_ok=True)
    plain = Case(place, "torch")
    first, second = plain.train(0), plain.train(1)
    shift = (first - Case(place, "torch").weights()).norm()
    off = {}
    for name in ("stage 1", "stage 2", "stage 3"):
        case = Case(place, name)
        off[name] = float((case.train(0) - first).norm() / shift)
        if name == "stage 1":
            case.save(saved)
    elsewhere = Case(place, "stage 3")
    files = {p.relative_to(saved).as_posix(): (0, 0) for p in saved.rglob("*.*")}
    Checkpoint(saved, None, files).load(elsewhere.optimizer)  # type: ignore[arg-type]
    on = elsewhere.train(1)
    off["saved by stage 1, gone on with in stage 3"] = float((on - second).norm() / shift)
    return off


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1] == "True", Path(sys.argv[2]), sys.argv[3])))
