#!/usr/bin/env bash
# deepspeed 0.19.8 on torch 2.13.0 (CPU, one process): ZeRO stages 1 to 3 leave a step with a gradient that is not finite out,
# report a norm of inf, and say so in `was_step_applied`. Stage 0 in float32 applies it, says so too, and its
# `get_global_grad_norm` is always None, clipping or not: one bad gradient and every weight is NaN. In bfloat16 with
# `check_grad_overflow` it is left out at stage 0 as well.
# Expected: the same at every stage.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy setuptools wheel
DS_BUILD_OPS=0 "$folder/env/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation deepspeed==0.19.8
cd "$folder"
export RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29555 DS_ACCELERATOR=cpu
env/bin/python - <<'PY' 2> err || { tail -5 err; exit 1; }
import math

import deepspeed
import torch

deepspeed.init_distributed("gloo")

def one_bad_step(stage, half):
    """Norm and whether the step was applied, for a good gradient and an infinite one; weights that are NaN after."""
    model = torch.nn.Linear(4, 4)
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "bf16": {"enabled": half, "check_grad_overflow": half},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    seen = []
    for scale in (1.0, math.inf):
        numbers = torch.ones(1, 4, dtype=torch.bfloat16 if half else torch.float32)
        engine.backward((engine(numbers) * scale).sum())
        engine.step()
        norm = engine.get_global_grad_norm()
        seen.append((None if norm is None else round(float(norm), 2), bool(engine.was_step_applied())))
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        lost = sum(int(weight.isnan().sum()) for weight in model.parameters())
    return *seen, lost

seen = {(stage, half): one_bad_step(stage, half) for half in (False, True) for stage in range(4)}
print("deepspeed", deepspeed.__version__, *seen.items(), sep="\n")
assert seen.pop((0, False)) == ((None, True), (None, True), 20)
assert set(seen.values()) == {((4.47, True), (math.inf, False), 0)}
PY
