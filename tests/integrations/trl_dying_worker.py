"""One rank of a TRL training in which rank 1 is killed after its first rollout batch, once that is
sealed: the launcher kills the others."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import trl_tiny

from lldscope.integrations.trl import instrument
from lldscope.storage.layout import read_manifest

folder = Path(sys.argv[1])


def reward(completion_ids: list[list[int]], trainer_state: Any, **_: Any) -> list[float]:
    if trainer_state.global_step == 4 and os.environ["RANK"] == "1":
        while not any(part.table == "steps" for part in read_manifest(folder / "run").parts):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    return trl_tiny.reward(completion_ids)


trainer = trl_tiny.make(folder, ddp_backend="gloo", max_steps=8, reward_funcs=reward)
instrument(trainer, folder / "run")
trainer.train()
