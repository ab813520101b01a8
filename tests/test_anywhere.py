"""What CONTRIBUTING.md promises to be the same on any machine.

Instruction sets are taken from the processor by the libraries' own switches, in a process each, and
what lldscope says there is compared (tests/elsewhere/answers.py). `make elsewhere` repeats other
tests under these and more conditions.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lldscope import Recorder, open_run
from lldscope.query import signal_engine
from lldscope.recording.batch import Batch, Scores
from lldscope.recording.token_samples import largest_drops
from tests.elsewhere.conditions import DECISIVE
from tests.elsewhere.instruction_sets import cleared, instruction_sets

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "sample_runs" / "grpo"
OTHERS = [name for name in instruction_sets() if name != "all"]


@pytest.fixture(scope="module")
def answers() -> dict[str, dict]:
    """What is said with each instruction set: {"decisions": …, "numbers": …}."""
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-m", "tests.elsewhere.answers"],
            cwd=ROOT, env=cleared() | switches, stdout=subprocess.PIPE, text=True,
        )
        for name, switches in instruction_sets().items()
    }
    outputs = {name: process.communicate()[0] for name, process in processes.items()}
    assert {name: process.returncode for name, process in processes.items()} == dict.fromkeys(
        outputs, 0
    )
    return {name: json.loads(text) for name, text in outputs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_every_decision_is_the_same_with_other_instructions(answers, name):
    here, there = (answers[of]["decisions"] for of in ("all", name))
    assert len(here) > 40  # searches, draws, nuclei, recorded runs and those of the bank
    assert [key for key in here if here[key] != there[key]] == []


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.slow
def test_numbers_of_the_analyzer_differ_by_rounding_at_most(answers, name):
    here, there = (answers[of]["numbers"] for of in ("all", name))
    compared = [key for key in here if not key.startswith("rollout")]
    assert len(compared) > 50
    for key in compared:
        np.testing.assert_allclose(there[key], here[key], rtol=1e-9, atol=1e-12, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_the_same_tokens_are_drawn_from_probabilities_that_differ_by_rounding(answers, name):
    """But where a draw falls between two roundings: that is one token in some hundred thousand."""
    here, there = (answers[of]["numbers"] for of in ("all", name))
    tokens = [key for key in here if "tokens" in key]
    other = [key for key in tokens if here[key] != there[key]]
    assert len(tokens) == 64
    assert len(other) <= 1
    for key in set(tokens) - set(other):
        logp = key.replace("tokens", "logp")
        np.testing.assert_allclose(there[logp], here[logp], atol=1e-3, err_msg=logp)


def test_the_switches_take_instructions_away():
    """Otherwise the tests above would compare a machine with itself."""
    names = ("NPY_DISABLE_CPU_FEATURES", "ATEN_CPU_CAPABILITY")
    code = (
        "import torch\n"
        "from numpy._core._multiarray_umath import __cpu_dispatch__ as d, __cpu_features__ as f\n"
        "print(sum(f[name] for name in d), torch.backends.cpu.get_cpu_capability())"
    )
    baseline = instruction_sets()["baseline"]
    done = subprocess.run(
        [sys.executable, "-c", code], env=cleared() | {name: baseline[name] for name in names},
        capture_output=True, text=True, check=True,
    )
    assert done.stdout.split() in (["0", "DEFAULT"], ["0", "NO", "AVX"])


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.slow
def test_signals_do_not_depend_on_the_order_of_rows_or_on_threads(tmp_path, monkeypatch, threads):
    """To the bit: sums are taken in double precision of measurements in single precision, which
    leaves nothing to round unless they are many orders of magnitude apart."""
    shuffled = recorded_anew(SAMPLE, tmp_path / "shuffled", seed=threads)
    connect = partial(signal_engine.duckdb.connect, config={"threads": threads})
    monkeypatch.setattr(signal_engine.duckdb, "connect", connect)
    with (open_run(ROOT / "sample_runs" / "grpo") as run, open_run(shuffled) as other):
        expected, signals = run.signals(), other.signals()
    assert len(expected) == 131
    assert expected["delta_correct"].count() > 120
    for name in expected:
        values = [frame[name].to_numpy(float, na_value=np.nan) for frame in (signals, expected)]
        assert values[0].tobytes() == values[1].tobytes(), name


def recorded_anew(source: Path, to: Path, seed: int) -> Path:
    """The rows of a run in another run, those of each step in another order."""
    rng = np.random.default_rng(seed)
    with open_run(source) as run, Recorder(to, trainer="tests") as recorder:
        tables = {
            name: run.sql(f"SELECT * EXCLUDE (attempt, rank) FROM {name}").groupby("step")
            for name in ("updates", "responses", "actions", "evals", "probes", "steps")
        }
        for step in run.signals()["step"]:
            for name, steps in tables.items():
                if step not in steps.groups:
                    continue
                rows = steps.get_group(step).dropna(axis="columns", how="all").drop(columns="step")
                rows = rows.iloc[rng.permutation(len(rows))].astype(object)
                columns = rows.where(rows.notna(), None).to_dict("list")
                if name == "steps":
                    recorder.step(step=step, **{n: values[0] for n, values in columns.items()})
                else:
                    getattr(recorder, name)(step=step, **columns)
    return to


def test_of_rollouts_that_lost_as_much_the_first_are_read():
    """An unstable sort has an order of its own, which follows the vector instructions."""
    n = 300
    mask, old = np.ones((n, 3), bool), np.zeros((n, 3), np.float32)
    post = old - (np.arange(n) % 3)[:, None]
    every, correct = np.ones(n, bool), np.arange(n) % 2 == 0
    batch = Batch(
        step=0, mask=mask, prompt_ids=[[1]] * n, completion_ids=[[1] * 3] * n,
        rewards=correct.astype(float), correct=correct.tolist(), group_ids=np.zeros(n, int),
        old=Scores(old, every), post=Scores(post, np.arange(n) != 8),
    )
    assert largest_drops(batch, 4) == [2, 5, 14, 20]


def test_the_decisive_tests_are_there():
    """A test that is renamed must be renamed in their list, too."""
    for place in DECISIVE:
        path, _, name = place.partition("::")
        assert (ROOT / path).exists(), place
        assert not name or f"def {name}(" in (ROOT / path).read_text("utf-8"), place
