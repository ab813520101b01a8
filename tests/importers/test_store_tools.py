"""The importers on what the installed tools write; tests/fixtures holds what they once wrote."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
TOOLS = ("tensorboard", "wandb", "mlflow", "trackio")


def test_what_the_installed_tools_write_is_read(tmp_path):
    for tool in TOOLS:
        shutil.copytree(FIXTURES / tool, tmp_path / tool)
    environment = {**os.environ, "LLDSCOPE_STORES": str(tmp_path), "DO_NOT_TRACK": "1"}
    for command in (
        [FIXTURES / "make_stores.py", *TOOLS],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "test_import_stores.py"],
    ):
        done = subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
    for tool in TOOLS:  # written anew
        theirs = {p.name: p.read_bytes() for p in (tmp_path / tool).rglob("*") if p.is_file()}
        ours = {p.name: p.read_bytes() for p in (FIXTURES / tool).rglob("*") if p.is_file()}
        assert theirs != ours, tool
