"""Several processes through the command line record one complete run."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from keeper import SMALL

import lldscope
from tests.gpu.made import make_model

RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RANKS, "-m", "--", "lldscope", "train", *map(str, arguments)],
        capture_output=True, text=True, timeout=300,
    )


def two_machines(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Two torchruns of one process each, as one per machine, that meet at an address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    machines = []
    for number in (0, 1):
        meet = ["--nnodes", "2", "--node_rank", str(number), "--nproc_per_node", "1",
                "--master_addr", "127.0.0.1", "--master_port", str(port)]
        machines.append(subprocess.Popen(
            [*RANKS[:3], *meet, "-m", "--", "lldscope", "train", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ))
    (out, err), (_, more) = (machine.communicate(timeout=300) for machine in machines)
    codes = [machine.returncode for machine in machines]
    return subprocess.CompletedProcess([], max(codes, key=abs), out, err + more)


def assert_complete(run: Path, steps: int, ranks_of: dict[int, int]) -> None:
    """Every step has all its responses once; `ranks_of` is how many ranks recorded each step."""
    reader = lldscope.open_run(run)
    assert reader.signals()["n_responses"].dropna().tolist() == [16] * steps
    counted = reader.sql(
        "SELECT step, count(DISTINCT response_id) AS n, count(DISTINCT rank) AS ranks,"
        " count(DISTINCT group_id) AS groups FROM responses GROUP BY step ORDER BY step"
    )
    assert counted["n"].tolist() == [16] * steps
    assert counted["groups"].tolist() == [4] * steps
    assert dict(zip(counted["step"], counted["ranks"], strict=True)) == ranks_of
    norms = reader.sql(
        "SELECT step, update, count(DISTINCT grad_norm) AS n FROM updates GROUP BY ALL"
    )
    assert (norms["n"] == 1).all(), "the gradient norm is that of the whole gradient on every rank"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (two_machines, []),
        pytest.param(
            torchrun, ["optimizer=deepspeed", "zero_stage=3", "kl_coefficient=0.01"],
            marks=pytest.mark.engine("deepspeed"),
        ),
    ],
    ids=["two machines", "zero 3"],
)
def test_two_ranks_train_and_one_resumes(tmp_path, lldscope_command, ranks, settings):
    run = tmp_path / "run"
    done = ranks(
        "tiny", *SMALL, *settings, "eval_questions=4", "llds=action", "checkpoint_every=1",
        "steps=2", "--run", run,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == str(run)
    assert_complete(run, 2, {0: 2, 1: 2})
    assert [e["rank"] for e in lldscope.open_run(run).events()] == [0, 0]
    assert (
        lldscope.open_run(run)
        .sql("SELECT DISTINCT n FROM evals WHERE metric = 'em_greedy'")["n"]
        .sum()
        <= 4
    )
    # Both ranks played it, and the first recorded what one process would have.
    single = lldscope_command(
        "train", "tiny", *SMALL, "eval_questions=4", "steps=0", "--run", tmp_path / "single"
    )
    assert single.returncode == 0, single.stderr
    first = [
        lldscope.open_run(where).sql(
            "SELECT data_source, metric, value, n FROM evals WHERE step = 0 ORDER BY 1, 2"
        )
        for where in (run, tmp_path / "single")
    ]
    assert first[0].equals(first[1])
    alone = lldscope_command("train", "--resume", "--run", run, "optimizer=torch", "steps=3")
    assert alone.returncode == 0, alone.stderr
    assert_complete(run, 3, {0: 2, 1: 2, 2: 1})


@pytest.mark.slow
@pytest.mark.engine("deepspeed")
@pytest.mark.engine("vllm")
def test_the_papers_configuration_runs_on_two_ranks(tmp_path):
    """As it is shipped for four GPUs, bfloat16, ZeRO 2, vLLM in every process and the KL, on a
    small model and the built-in world."""
    model = make_model(tmp_path / "model", small=True)
    done = torchrun(
        "search-r1-3b", "device=cpu", f"model={model}", "data=countries", "corpus=countries",
        "retriever_url=", "eval_data=", "prompts=4", "group_size=4", "updates=2",
        "micro_tokens=512",
        "turn_tokens=24", "observation_tokens=24", "sequence_tokens=256", "eval_questions=4",
        "steps=2", "checkpoint_every=1", "--run", tmp_path / "run",
    )
    assert done.returncode == 0, done.stderr
    assert_complete(tmp_path / "run", 2, {0: 2, 1: 2})


def test_prompts_that_cannot_be_divided_are_refused_before_there_is_a_run(
    tmp_path, lldscope_command, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for call in ("init_process_group", "broadcast_object_list"):
        monkeypatch.setattr(f"torch.distributed.{call}", lambda *a, **k: None)
    done = lldscope_command("train", "tiny", "device=cpu", "prompts=3", "--run", tmp_path / "run")
    assert done.returncode == 2
    assert "prompts=3 is not allowed with 2 processes" in done.stderr
    assert not (tmp_path / "run").exists()
