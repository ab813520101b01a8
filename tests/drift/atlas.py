"""`python -m tests.drift.atlas [trl|verl]`: run the experiments behind the atlas of trainers'
metrics (lldscope/core/atlas.toml) with the newest releases, each in an environment of its own that
is thrown away, and print which numbers are other quantities than the atlas says.

Exit code 1 if one moved, 2 if an environment could not be made or the experiment did not run.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from lldscope.core.atlas import of_trainer

HERE = Path(__file__).parent


class Experiment(NamedTuple):
    """A script that prints which definitions each logged number equals, and what it needs."""

    script: str
    launcher: tuple[str, ...]
    source: str  # in the atlas
    packages: tuple[str, ...]


RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
EXPERIMENTS = {
    "trl": Experiment("trl_experiment.py", RANKS, "TRL 1.16.0", ("trl",)),
    "verl": Experiment(
        "verl_experiment.py", (), "verl 0.9.1",
        ("verl", "TransferQueue", "cachetools", "fastapi", "uvicorn"),
    ),
}


def outcome(trainer: str, python: Path, folder: Path) -> dict[str, Any]:
    """What an experiment prints; raises OSError if it does not run."""
    experiment = EXPERIMENTS[trainer]
    command = [python, *experiment.launcher, HERE / experiment.script, folder]
    env = os.environ | {"TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"version"')]
    if done.returncode or not lines:
        raise OSError(done.stderr[-2000:])
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def moved(trainer: str, result: dict[str, Any]) -> list[str]:
    """The numbers that are not what the atlas says, as lines."""
    matches: dict[str, list[list[str]]] = result["matches"]
    lines = []
    for m in of_trainer(trainer):
        key = m.key.replace("NAME", "parity")  # a reward of the experiment
        if m.source != EXPERIMENTS[trainer].source or m.how == "read":
            continue
        if key not in matches:
            lines.append(f"{key}: no longer logged")
        elif [m.quantity, m.over] not in matches[key]:
            now = "; or ".join(" over ".join(filter(None, two)) for two in matches[key])
            lines.append(f"{key}: {now or 'none of the definitions that were tried'}; the atlas "
                         f"says {m.quantity} over {m.over}")
    return lines


def newest(folder: Path, packages: tuple[str, ...]) -> Path:
    """The Python of a new environment. pip chooses the build of torch, and uv, if there is one,
    installs the rest. Raises CalledProcessError."""
    environment = runpy.run_path(str(HERE.parents[1] / ".ci" / "environment.py"))
    python: Path = environment["environment"](folder)
    quiet = environment["pip"](python, "install", "--quiet")
    subprocess.run([*quiet, f"torch=={version('torch').split('+')[0]}"], check=True)
    if uv := environment["find_uv"]():
        quiet = [uv, "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*quiet, *packages], env=environment["uv_environment"](python), check=True)
    return python


def main(trainers: list[str]) -> int:
    worst = 0
    for trainer in trainers or EXPERIMENTS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                python = newest(Path(folder, "env"), EXPERIMENTS[trainer].packages)
                result = outcome(trainer, python, Path(folder))
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"{trainer}: {error}")
                worst = 2
                continue
        lines = moved(trainer, result)
        print(f"{trainer} {result['version']} ({EXPERIMENTS[trainer].source} in the atlas): "
              f"{len(lines)} numbers moved")
        for line in lines:
            print(f"  {line}")
        worst = max(worst, int(bool(lines)))
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
