"""Wheels of this checkout, and environments with them."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / ".ci" / "environment.py"))
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
UV = shutil.which("uv", path=PATH)  # a fraction of pip's time
PIP = [sys.executable, "-m", "pip", "-q"]


def run(*command: object) -> None:
    variables = TOOL["uv_environment"](Path(sys.executable))
    subprocess.run(command, env=variables, check=True)


def wheel_of(source: Path, folder: Path) -> Path:
    wheel = [UV, "build", "-q", "--wheel", "-o"] if UV else [*PIP, "wheel", "--no-deps", "-w"]
    run(*wheel, folder, source)
    (file,) = folder.glob("*.whl")
    return file


def environment_with(folder: Path, *installations: list[object]) -> Path:
    """The interpreter of an environment with these and nothing else."""
    venv.create(folder)
    python = folder / "bin" / "python"
    install = [UV, "pip", "install", "-q"] if UV else [*PIP, "install", "--no-compile"]
    for what in installations:
        run(*install, "--python", python, "-c", ROOT / "constraints.txt", *what)
    return python
