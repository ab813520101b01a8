"""What recording costs a tiny training step.

Two ways to see it, in one run: what the trainer's own clock puts down to recording, and whole
steps with everything recorded against steps of the same seed with nothing recorded, in turns.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from lldscope_trainer.config import load_config
from lldscope_trainer.train import Trainer

import lldscope

STEPS = 30
WARM_UP = 3


def main() -> None:
    recorded = load_config("demo", ["eval_questions=0"])
    bare = load_config("demo", ["eval_questions=0", "rescore_share=0", "tokens_every=0"])
    with tempfile.TemporaryDirectory() as folder:
        recorder = lldscope.Recorder(Path(folder) / "run")
        with_, without = Trainer(recorded, recorder), Trainer(bare, lldscope.NullRecorder())
        seconds: dict[str, list[float]] = {"recorded": [], "bare": []}
        for step in range(WARM_UP + STEPS):
            for name, trainer in (("recorded", with_), ("bare", without)):
                start = time.perf_counter()
                trainer.step(step)
                if step >= WARM_UP:
                    seconds[name].append(time.perf_counter() - start)
        recorder.close()
        clock = lldscope.open_run(Path(folder) / "run").sql(
            "SELECT sum(seconds_rollout) AS rollout, sum(seconds_update) AS update,"
            f" sum(seconds_record) AS record FROM steps WHERE step >= {WARM_UP}"
        ).iloc[0].to_dict()
        size = sum(f.stat().st_size for f in Path(folder).rglob("*.parquet"))
    _print(clock, seconds, size)


def _print(clock: dict[str, float], seconds: dict[str, list[float]], size: int) -> None:
    training = clock["rollout"] + clock["update"]
    print(f"{STEPS} steps of configs/demo.yaml, one thread")
    print(f"training step             {training / STEPS * 1e3:9.1f} ms  (rollout and updates)")
    print(
        f"recording                 {clock['record'] / STEPS * 1e3:9.1f} ms  "
        f"{clock['record'] / training:.2%} of it, the re-score for Δ included"
    )
    # Recording changes nothing in the training, so both do the same work step by step.
    ratio = median(seconds["recorded"]) / median(seconds["bare"])
    print(
        f"median whole step         recorded {median(seconds['recorded']) * 1e3:.1f} ms, bare "
        f"{median(seconds['bare']) * 1e3:.1f} ms, ratio {ratio:.3f}"
    )
    print(f"on disk                   {size / STEPS / 1e3:9.1f} kB per step")


if __name__ == "__main__":
    main()
