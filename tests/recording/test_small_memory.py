"""A run that is larger than the memory a process may have: commands work or end with a sentence."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import lldscope
from lldscope.doctor.checks import examine
from lldscope.doctor.findings import worst

ENOUGH_TO_SPEAK, TOO_LITTLE = 300 << 20, 60 << 20  # bytes beyond what the imports took
ROWS, STEPS, LETTERS = 256, 40, 20_000

LIMITED = """
import resource, sys
import duckdb, pandas, pyarrow.parquet, lldscope
from lldscope.cli import main
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
sys.argv = ["lldscope", *sys.argv[2:]]
main()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Texts of about 200 MB that do not compress to nothing, in parts that are not merged."""
    path, dice = tmp_path_factory.mktemp("large") / "run", np.random.default_rng(0)
    ids = np.arange(ROWS)
    with lldscope.Recorder(path) as recorder:
        for step in range(STEPS):
            words = dice.integers(97, 123, (ROWS, LETTERS), np.uint8)
            texts = [row.tobytes().decode() for row in words]
            recorder.responses(step=step, response_id=ids, reward=ids % 2, text=texts)
            recorder.step(step=step, n_responses=ROWS, reward_sum=ROWS / 2)
            recorder.flush()
    return path


CHECK, COMPACT = ["check", "{}"], ["compact", "{}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "command"),
    [
        (ENOUGH_TO_SPEAK, CHECK),
        (ENOUGH_TO_SPEAK, ["doctor", "{}"]),
        (ENOUGH_TO_SPEAK, ["query", "{}", "SELECT max(length(text)) FROM responses"]),
        (ENOUGH_TO_SPEAK, ["query", "{}", "SELECT list(text) FROM responses"]),
        (ENOUGH_TO_SPEAK, ["export", "{}", "--to", "{}-exported", "--tables", "responses"]),
        (ENOUGH_TO_SPEAK, COMPACT),
        (TOO_LITTLE, CHECK),
        (TOO_LITTLE, COMPACT),
    ],
    ids=str,
)
def test_commands_work_or_end_with_a_sentence_in_little_memory(run, command, most):
    words = [word.replace("{}", str(run)) for word in command]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(most), *words], capture_output=True, text=True,
        timeout=600, env=os.environ | {"MALLOC_ARENA_MAX": "2"},
    )
    # With less, or for all texts at once, libraries in C++ may end the process.
    if most == ENOUGH_TO_SPEAK and "list(" not in words[-1]:
        assert "Traceback" not in done.stderr, done.stderr[-3000:]
        assert done.returncode >= 0, "it was killed"
        assert done.stdout + done.stderr
    assert worst(examine(run).findings) != "damage"
    with lldscope.open_run(run) as again:
        assert again.damaged == {}
        assert again.rows("SELECT count(*) FROM responses").rows == [(ROWS * STEPS,)]
