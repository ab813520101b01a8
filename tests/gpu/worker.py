"""A run in a process of its own, to be killed.

python -m tests.gpu.worker SMALL MODEL RUN [--resume]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lldscope_trainer import loop
from lldscope_trainer.checkpoint import find_checkpoint
from lldscope_trainer.train import Trainer

import lldscope

from .checks import Place
from .made import one_turn, settings
from .running import STEPS


def main(small: bool, model: str, run: Path, *options: str) -> None:
    place = Place(torch.device("cpu" if small else "cuda"), run.parent, model, small)
    config = settings(place, f"steps={STEPS}", "checkpoint_every=1")
    checkpoint = find_checkpoint(run) if "--resume" in options else None
    trainer = one_turn(Trainer(config, lldscope.NullRecorder(), checkpoint=checkpoint))
    recorder = lldscope.Recorder(
        run, name="gpu", trainer="tests.gpu", config=config.to_dict(), resume=checkpoint is not None
    )
    with recorder:
        loop.run(trainer, recorder, run_dir=run)


if __name__ == "__main__":
    main(sys.argv[1] == "True", sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
