"""One rank of a TRL training with LLDS, for test_trl.py: is the gradient that of the mean over the
preserving set of both ranks?"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import torch
import trl_tiny
from accelerate.utils import gather_object
from test_trl import LLDS, gradients, plain_llds
from transformers import TrainerCallback

from lldscope.integrations.trl import instrument


def main() -> None:
    folder = Path(sys.argv[1])
    found, states = {}, []
    for name in ("off", "on"):
        trainer = trl_tiny.make(folder / name, **LLDS, ddp_backend="gloo")
        if name == "on":
            instrument(trainer, folder / "run", llds="action", llds_coefficient=0.2)
        found[name] = gradients(trainer)

        class Keep(TrainerCallback):
            def on_step_end(self, *args, trainer=trainer, **kwargs):
                states.append(copy.deepcopy(trainer.model.state_dict()))

        trainer.add_callback(Keep())
        trainer.train()
    parts = gather_object(trainer._buffered_inputs[2:4])
    if trainer.accelerator.process_index == 0:
        fresh = type(trainer.model)(trainer.model.config)
        fresh.load_state_dict(states[2])
        plain_llds(fresh, parts, "action").backward()
        expected = 0.2 * torch.cat([p.grad.flatten() for p in fresh.parameters()])
        apart = (found["on"][1] - found["off"][1] - expected).abs().max().item()
        seen = {"apart": apart, "largest": expected.abs().max().item(), "parts": len(parts)}
        (folder / "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
