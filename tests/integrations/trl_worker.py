"""One rank of a TRL training with LLDS, for test_trl.py: is the gradient that of the mean over the
preserving set of both ranks? The node has no DuckDB: it only records."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from accelerate.utils import gather_object


def main() -> None:
    sys.modules["duckdb"] = None  # type: ignore[assignment]
    from test_trl import expected_llds, without_and_with_llds

    folder = Path(sys.argv[1])
    trainer, results, fresh = without_and_with_llds(folder, ddp_backend="gloo")
    parts = gather_object(trainer._buffered_inputs[2:4])
    if trainer.accelerator.process_index == 0:
        expected_llds(fresh, parts).backward()
        expected = 0.2 * torch.cat([p.grad.flatten() for p in fresh.parameters()])
        apart = (results["on"][1] - results["off"][1] - expected).abs().max().item()
        sightings = {"apart": apart, "largest": expected.abs().max().item(), "parts": len(parts)}
        (folder / "seen.json").write_text(json.dumps(sightings))


if __name__ == "__main__":
    main()
