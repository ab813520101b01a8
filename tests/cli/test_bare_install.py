"""`pip install lldscope` alone: what is missing is named with the extra that brings it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from installation import ROOT, environment_with, wheel_of

TENSORBOARD = ROOT / "tests" / "fixtures" / "tensorboard" / "plain"

# Command → (exit code, what stderr says); RUN and FOLDER are replaced.
COMMANDS = {
    "check RUN": (11, ""),
    "diagnose RUN -o FOLDER/page.html": (11, "wrote"),
    "report RUN -o FOLDER/report.html": (0, "wrote"),
    "runs FOLDER": (0, ""),
    "compare RUN RUN": (0, ""),
    "diff RUN RUN": (0, ""),
    "lint RUN": (0, ""),
    "query RUN (FROM+signals)": (0, ""),
    "export RUN --to FOLDER/csv --format csv": (0, ""),
    "schema": (0, ""),
    "rules list": (0, ""),
    "doctor RUN": (0, ""),
    "compact RUN": (0, ""),
    "annotate RUN": (0, ""),
    "import --formats": (0, ""),
    "demo": (1, "lldscope[train,dash]"),
    "demo --no-dash": (1, "lldscope[train]"),
    "train tiny": (1, "lldscope[train]"),
    "blame RUN": (1, "lldscope[train]"),
    "retriever RUN/run.json": (1, "lldscope[train]"),
    "dash FOLDER": (1, "lldscope[dash]"),
    "mcp FOLDER": (1, "lldscope[mcp]"),
    "check s3://bucket/run": (1, "lldscope[remote]"),
    "watch RUN --timeout 1 --notify slack://a/b/c": (2, "lldscope[notify]"),
    "import wandb://a/b/c --to FOLDER/w": (1, "lldscope[import]"),
    f"import {TENSORBOARD} --to FOLDER/t": (1, "lldscope[import]"),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return wheel_of(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory, wheel) -> Path:
    """The interpreter of an environment with the wheel and what it depends on."""
    return environment_with(tmp_path_factory.mktemp("bare") / "venv", [wheel])


ONE_AFTER_THE_OTHER = """
import contextlib, io, json, sys
from lldscope.cli import main
results = []
for arguments in json.load(sys.stdin):
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    sys.argv, code = ["lldscope", *arguments], 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    err.flush()
    results.append([code, err.buffer.getvalue().decode("utf-8")])
json.dump(results, sys.stdout)
"""


@pytest.mark.slow
def test_every_command_works_or_names_the_extra_that_it_needs(bare, tmp_path):
    run = shutil.copytree(ROOT / "sample_runs" / "grpo", tmp_path / "runs" / "grpo")
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": ""}
    words_of = [
        [w.replace("RUN", str(run)).replace("FOLDER", str(run.parent)).replace("+", " ")
         for w in command.split()]
        for command in COMMANDS
    ]
    done = subprocess.run(
        [bare, "-c", ONE_AFTER_THE_OTHER], input=json.dumps(words_of), capture_output=True,
        text=True, cwd=tmp_path, env=environment, check=True,
    )
    results = zip(COMMANDS.items(), json.loads(done.stdout), strict=True)
    for (command, (code, words)), (result, err) in results:
        assert (result, words in err) == (code, True), (command, err)
        assert "Traceback" not in err, command


@pytest.mark.slow
def test_an_integration_names_its_extra(bare, tmp_path):
    done = subprocess.run(
        [bare, "-c", "import lldscope.integrations.trl"], capture_output=True, text=True,
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": ""},
    )
    assert done.returncode == 1
    assert "pip install 'lldscope[trl]'" in done.stderr


RECORD = """
import sys
import lldscope
with lldscope.Recorder(sys.argv[1]) as recorder:
    for step in range(30):
        recorder.step(step=step, n_responses=2, n_correct=1, reward_sum=1.0)
        recorder.responses(step=step, response_id=[0, 1], group_id=[0, 0], reward=[0.0, 1.0],
                           correct=[False, True])
        recorder.actions(step=step, response_id=[0, 1], action_index=[0, 0], kind=["answer"] * 2,
                         n_tokens=[3, 3], logp_old_sum=[-1.0, -1.0], logp_post_sum=[-1.1, -0.9])
print(*sorted({"click", "duckdb", "jinja2", "pandas", "rich"} & {*sys.modules}))
"""


@pytest.mark.slow
def test_a_node_that_only_records_needs_three_packages(wheel, tmp_path, lldscope_command):
    """As docs/deploy.md has it; judged here, with the whole installation."""
    command = next(line for line in (ROOT / "docs" / "deploy.md").read_text().splitlines()
                   if line.startswith("pip install --no-deps lldscope"))
    packages = command.rpartition("pip install ")[2].split()
    python = environment_with(tmp_path / "venv", packages, ["--no-deps", wheel])
    done = subprocess.run(
        [python, "-c", RECORD, tmp_path / "run"], capture_output=True, text=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": ""},
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
    state = json.loads(lldscope_command("check", tmp_path / "run", "--json").stdout)
    assert (state["last_step"], state["evidence"]) == (29, "delta")
